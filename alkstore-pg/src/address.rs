//! What a URL says of the way to the server: followed to the letter or refused, and nothing secret
//! of it shown. Where the URL is silent the variables of libpq count (`PGSSLMODE`, `PGPASSWORD`, …).

use std::io::ErrorKind;
use std::path::PathBuf;
use std::{env, fs};

use alkstore_core::{Error, Result};
use sqlx::ConnectOptions;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx_core::Url;
use sqlx_core::net::tls;

use crate::error::Failure;

/// What the driver reads of a URL, beside its host, user and database. It passes over everything
/// else and writes it to the log, a password under another name as well.
const PARAMETERS: [&str; 19] = [
    "application_name",
    "dbname",
    "host",
    "hostaddr",
    "options",
    "password",
    "port",
    "ssl-ca",
    "ssl-cert",
    "ssl-key",
    "ssl-mode",
    "ssl-root-cert",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "statement-cache-capacity",
    "user",
    "options[…]",
];

const SSL_MODES: &str = "disable, prefer, require, verify-ca or verify-full";

/// Reads a URL, which is told by the argument that it was given as.
pub(crate) fn read(argument: &'static str, url: &str) -> Result<PgConnectOptions> {
    let is_postgres = url.starts_with("postgres://") || url.starts_with("postgresql://");
    let parsed = if is_postgres { Url::parse(url).ok() } else { None };
    // What stands after a # would count for nothing.
    let parsed = parsed.filter(|url| url.fragment().is_none());
    let Some(parsed) = parsed else { return Err(unreadable(argument, url)) };

    let mut ssl_mode = env::var("PGSSLMODE").ok();
    let mut has_root = env::var_os("PGSSLROOTCERT").is_some();
    let mut has_password = parsed.password().is_some() || env::var("PGPASSWORD").is_ok();
    for (name, value) in parsed.query_pairs() {
        match &*name {
            "sslmode" | "ssl-mode" => ssl_mode = Some(value.into_owned()),
            "sslrootcert" | "ssl-root-cert" | "ssl-ca" => has_root = true,
            "password" => has_password = true,
            name if PARAMETERS.contains(&name) || name.starts_with("options[") => {}
            name => return Err(unknown(&parsed, name)),
        }
    }
    let ssl_mode = checked(ssl_mode.as_deref(), has_root)?;
    #[cfg(feature = "_tls")]
    choose_provider();
    if !has_password {
        check_passfiles()?;
    }
    match PgConnectOptions::from_url(&parsed) {
        Ok(options) => Ok(options.ssl_mode(ssl_mode)),
        Err(_) => Err(unreadable(argument, url)),
    }
}

/// The URL may hold a password, and so may the parser's error.
fn unreadable(argument: &'static str, url: &str) -> Error {
    let shown = url.split_once("://").map_or("a text without a scheme", |(scheme, _)| scheme);
    Error::invalid_argument(
        argument,
        format_args!("{shown}://…"),
        "a URL like postgres://user:password@host:5432/database?sslmode=prefer, what is special in the password percent-encoded",
    )
}

fn unknown(url: &Url, name: &str) -> Error {
    // A password with a question mark that wasn't encoded would be here.
    let shown = if url.query().is_some_and(|query| query.contains('@')) { "***" } else { name };
    let known = PARAMETERS.join(", ");
    Error::invalid_argument("parameter", shown, format!("one that the driver has: {known}"))
}

/// How the driver has to go about TLS.
fn checked(given: Option<&str>, has_root: bool) -> Result<PgSslMode> {
    let Some(given) = given else { return Ok(PgSslMode::default()) };
    let refused = |expected: &str| Error::invalid_argument("sslmode", given, expected);
    let mode = given.parse().map_err(|_| refused(SSL_MODES))?;
    match mode {
        // The driver would take it for disable.
        PgSslMode::Allow => Err(refused(&format!("{SSL_MODES}; allow isn't supported"))),
        PgSslMode::Require | PgSslMode::VerifyCa | PgSslMode::VerifyFull if !tls::available() => {
            Err(refused(
                "disable or prefer, because this build has no TLS; turn on a feature for it, pg-rustls-ring or pg-rustls-aws-lc of alkstore, or tls-rustls-ring-webpki or another of alkstore-pg",
            ))
        }
        // As libpq has it: a root is named to be checked against.
        PgSslMode::Require if has_root => Ok(PgSslMode::VerifyCa),
        mode => Ok(mode),
    }
}

/// Chooses who does the cryptography where the process hasn't: the driver asks rustls for it where it
/// checks a certificate without the host's name, and rustls panics where several are compiled in.
#[cfg(feature = "_tls")]
fn choose_provider() {
    #[cfg(feature = "tls-rustls-aws-lc-rs")]
    use rustls::crypto::aws_lc_rs::default_provider;
    #[cfg(not(feature = "tls-rustls-aws-lc-rs"))]
    use rustls::crypto::ring::default_provider;

    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Whoever was first in between has chosen as well.
        let _ = default_provider().install_default();
    }
}

/// Refuses a passfile with a line that has too few fields: the driver would write it to the log,
/// and with it what may be a password.
fn check_passfiles() -> Result<()> {
    let named = env::var_os("PGPASSFILE").map(PathBuf::from);
    let usual = env::home_dir().map(|home| home.join(".pgpass"));
    for path in named.into_iter().chain(usual) {
        // One that can't be read is none.
        let text = fs::read(&path).unwrap_or_default();
        let lines = text.split(|byte| *byte == b'\n');
        if let Some((number, _)) = (1..).zip(lines).find(|(_, line)| !is_entry(line)) {
            return Err(Error::invalid_argument(
                "passfile",
                format_args!("line {number} of {}", path.display()),
                "host:port:database:user:password",
            ));
        }
    }
    Ok(())
}

fn is_entry(line: &[u8]) -> bool {
    let line = line.trim_ascii_end();
    if line.first().is_none_or(|first| *first == b'#') {
        return true;
    }
    let (mut colons, mut escaped) = (0, false);
    for byte in line {
        colons += i32::from(*byte == b':' && !escaped);
        escaped = *byte == b'\\' && !escaped;
    }
    colons >= 4
}

/// What a failed attempt to connect is, where waiting can't mend it.
pub(crate) fn failure(options: &PgConnectOptions, error: sqlx::Error) -> Failure {
    let sqlx::Error::Io(io) = &error else { return error.into() };
    let is_tcp = options.get_socket().is_none() && !options.get_host().starts_with('/');
    let message = match io.kind() {
        // So the driver passes on what TLS can't accept.
        ErrorKind::InvalidData => format!(
            "TLS with {}:{} failed: {io}; check sslmode, and that sslrootcert names the authority that signed the server's certificate",
            options.get_host(),
            options.get_port()
        ),
        ErrorKind::NotFound | ErrorKind::PermissionDenied if is_tcp => format!(
            "a certificate or a key can't be read: {io}; check the paths of sslrootcert, sslcert and sslkey"
        ),
        _ => return error.into(),
    };
    Error::Engine { message, source: Some(Box::new(error)) }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(url: &str) -> String {
        let error = read("url", url).unwrap_err();
        format!("{error} {error:?}")
    }

    #[test]
    fn what_would_be_passed_over_is_refused() {
        assert!(refusal("postgres://db/app?sslmod=require").contains("\"sslmod\""));
        assert!(refusal("postgres://db/app?channel_binding=require").contains("channel_binding"));
        for mode in ["requrie", "allow", "ALLOW", ""] {
            let error = refusal(&format!("postgres://db/app?sslmode={mode}"));
            assert!(error.contains("verify-full"), "{error}");
        }
        let options = read("url", "postgres://ada:x@db/app?options[geqo]=off&ssl-mode=disable");
        assert!(matches!(options.unwrap().get_ssl_mode(), PgSslMode::Disable));
    }

    #[test]
    fn a_named_root_is_checked_against() {
        if tls::available() {
            let mode = |mode, has_root| checked(Some(mode), has_root).unwrap();
            assert!(matches!(mode("require", false), PgSslMode::Require));
            assert!(matches!(mode("require", true), PgSslMode::VerifyCa));
            assert!(matches!(mode("prefer", true), PgSslMode::Prefer));
        } else {
            for mode in ["require", "verify-ca", "verify-full"] {
                let error = checked(Some(mode), false).unwrap_err().to_string();
                assert!(error.contains("no TLS") && error.contains("pg-rustls-ring"), "{error}");
            }
        }
    }

    #[test]
    fn no_part_of_a_password_is_shown() {
        for url in [
            "postgres://ada:s3cret@db:port/app",
            "postgres://ada:1?s3cret@db/app",
            "postgres://ada:1?x&s3cret@db/app",
            "postgres://ada:1#s3cret@db/app",
            "postgres://ada:s3cret@db/app?sslmode=no",
            "postgres://db/app?passwd=s3cret",
            "postgres://db/app?password=s3cret&port=no",
            "mysql://ada:s3cret@db/app",
            "s3cret",
        ] {
            let error = refusal(url);
            assert!(!error.contains("s3cret"), "{url}: {error}");
        }
    }

    #[test]
    fn lines_of_a_passfile_have_five_fields() {
        for line in
            ["", "  ", "# s3cret", "db:5432:app:ada:s3cret", r"d\:b:*:*:*:s\\", "::1:1:a:b:c"]
        {
            assert!(is_entry(line.as_bytes()), "{line}");
        }
        for line in ["s3cret", "db:5432:ada:s3cret", r"db\:5432:app:ada:s3cret"] {
            assert!(!is_entry(line.as_bytes()), "{line}");
        }
    }
}
