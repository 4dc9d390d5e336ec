//! What every engine's URL has in common: a scheme, and secrets to keep out of errors.

use percent_encoding::percent_decode_str;

/// What stands for a secret.
pub(crate) const MASK: &str = "***";

/// Texts as an error lists them: quoted, the last after an "or".
pub(crate) fn listed(texts: &[&str]) -> String {
    let quoted: Vec<_> = texts.iter().map(|text| format!("{text:?}")).collect();
    match quoted.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => quoted.concat(),
    }
}

/// Parts of a parameter's name that tell a secret.
const SECRET_NAMES: [&str; 4] = ["pass", "pwd", "secret", "token"];

/// Schemes whose URLs are no address of a server, so that an `@` in them divides nothing.
const LOCAL_SCHEMES: [&str; 2] = ["memory:", "sqlite:"];

/// The URL with its passwords masked, for errors and `Debug`. Where a text that is no URL leaves
/// it open what the password is, rather too much is masked.
pub(crate) fn masked(url: &str) -> String {
    let masked = mask_user_info(url);
    masked.split_inclusive(['?', '&', ';', ' ']).map(mask_parameter).collect()
}

/// A parameter's value with its passwords masked: all of it where the name tells a secret.
#[cfg(any(feature = "mem", feature = "pg", feature = "sqlite-unbundled"))]
pub(crate) fn masked_value(name: &str, value: &str) -> String {
    let masked = masked(&format!("{name}={value}"));
    masked.split_once('=').map_or(String::new(), |(_, value)| value.to_owned())
}

/// Masks from the first colon to the last `@`: a password may hold anything, unescaped by mistake.
fn mask_user_info(url: &str) -> String {
    let start = match url.find("//") {
        Some(slashes) => slashes + 2,
        None if LOCAL_SCHEMES.iter().any(|scheme| url.starts_with(scheme)) => {
            return url.to_owned();
        }
        None => 0,
    };
    let (head, tail) = url.split_at(start);
    let Some((user_info, host)) = tail.rsplit_once('@') else { return url.to_owned() };
    match user_info.split_once(':') {
        Some((user, _)) => format!("{head}{user}:{MASK}@{host}"),
        None => url.to_owned(),
    }
}

fn mask_parameter(piece: &str) -> String {
    let Some((name, value)) = piece.split_once('=') else { return piece.to_owned() };
    // As the engine will read it.
    let lower = percent_decode_str(name).decode_utf8_lossy().to_lowercase();
    if !SECRET_NAMES.iter().any(|secret| lower.contains(secret)) {
        // The value may be a URL with a password of its own.
        let decoded = percent_decode_str(value).decode_utf8_lossy();
        let hides = decoded != value && decoded.contains('@');
        return if hides { format!("{name}={}", masked(&decoded)) } else { piece.to_owned() };
    }
    let end = value.trim_start_matches(|c| !matches!(c, '?' | '&' | ';' | ' '));
    format!("{name}={MASK}{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_masked_and_nothing_else_where_the_url_is_one() {
        for (url, expected) in [
            ("postgres://ada:s3cret@db:5432/app", "postgres://ada:***@db:5432/app"),
            ("postgres://ada:s3:cr@et@db/app", "postgres://ada:***@db/app"),
            ("postgres://ada:s/3?c#ret@db/app", "postgres://ada:***@db/app"),
            ("postgres://ada@db/app?password=s3cret", "postgres://ada@db/app?password=***"),
            (
                "postgres://db/app?sslPassword=s3cret&schema=jobs",
                "postgres://db/app?sslPassword=***&schema=jobs",
            ),
            ("postgres://db:5432/app?schema=jobs", "postgres://db:5432/app?schema=jobs"),
            ("postgres://db/app?p%61ssword=s3cret", "postgres://db/app?p%61ssword=***"),
            (
                "postgres://db/app?listen_url=postgres%3A%2F%2Fada%3As3cret%40db",
                "postgres://db/app?listen_url=postgres://ada:***@db",
            ),
            ("memory:?lock_timeout=5s", "memory:?lock_timeout=5s"),
            ("sqlite:a:b@c.db", "sqlite:a:b@c.db"),
        ] {
            assert_eq!(masked(url), expected);
        }
    }

    #[test]
    fn passwords_are_masked_in_what_is_no_url() {
        for text in [
            "ada:s3cret@db/app",
            "postgres:ada:s3cret@db/app",
            "postgres:/ada:s3cret@db/app",
            "//ada:s3cret@db/app",
            "host=db user=ada password=s3cret dbname=app",
            "sqlite://ada:s3cret@db",
        ] {
            let masked = masked(text);
            assert!(!masked.contains("s3cret") && masked.contains(MASK), "{text} → {masked}");
        }
    }
}
