//! `sslmode` is followed or refused: what asks for TLS never ends up without.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

use alkstore_core::Error;
use alkstore_pg::PgStore;
use alkstore_suite::pg::Cluster;

/// Opens a store and says what went wrong.
async fn refusal(url: &str) -> Error {
    match PgStore::connect(url).await {
        Err(error) => error,
        Ok(_) => panic!("{url} opens"),
    }
}

#[cfg(not(any(
    feature = "tls-rustls-aws-lc-rs",
    feature = "tls-rustls-ring-webpki",
    feature = "tls-rustls-ring-native-roots"
)))]
#[tokio::test]
async fn a_build_without_tls_says_so_and_connects_to_nobody() {
    for mode in ["require", "verify-ca", "verify-full"] {
        let error = refusal(&format!("postgres://127.0.0.1:1/app?sslmode={mode}")).await;
        assert!(matches!(error, Error::InvalidArgument { argument: "sslmode", .. }), "{error:?}");
        assert!(error.to_string().contains("tls-rustls-ring-webpki"), "{error}");
    }
    let url = Cluster::shared().url();
    for mode in ["disable", "prefer"] {
        let store = PgStore::connect(&format!("{url}?sslmode={mode}")).await.unwrap();
        alkstore_core::StoreExt::close(&store).await.unwrap();
    }
}

#[cfg(any(
    feature = "tls-rustls-aws-lc-rs",
    feature = "tls-rustls-ring-webpki",
    feature = "tls-rustls-ring-native-roots"
))]
mod with_tls {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    use std::path::Path;
    use std::time::Duration;

    use alkstore_core::{Result, StoreExt};
    use alkstore_pg::sqlx::postgres::PgConnection;
    use alkstore_pg::sqlx::{self, AssertSqlSafe, Connection, Executor, Row};
    use alkstore_suite::pg::ClusterOptions;
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

    use super::*;

    fn engine(error: Error) -> String {
        assert!(matches!(error, Error::Engine { .. }), "{error:?}");
        error.to_string()
    }

    fn authority() -> (String, Issuer<'static, KeyPair>) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, "an authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        (pem, Issuer::new(params, key))
    }

    /// Writes down the authority's certificate, another authority's, and the server's, which is
    /// good for its address and not for its name.
    fn certificates(directory: &Path) {
        let (pem, issuer) = authority();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        let own = params.signed_by(&key, &issuer).unwrap();
        for (name, text) in [
            ("ca.pem", pem),
            ("other.pem", authority().0),
            ("server.pem", own.pem()),
            ("server.key", key.serialize_pem()),
        ] {
            let path = directory.join(name);
            fs::write(&path, text).unwrap();
            // Postgres refuses a key that others could read.
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            if fs::metadata(&path).unwrap().uid() == 0 {
                chown(&path, Some(fs::metadata(directory).unwrap().uid()), None).unwrap();
            }
        }
    }

    async fn with_tls() -> Cluster {
        let cluster = Cluster::start(ClusterOptions::new());
        let directory = cluster.directory();
        certificates(directory);
        let mut sql = PgConnection::connect(&cluster.url()).await.unwrap();
        for (name, file) in [("ssl_cert_file", "server.pem"), ("ssl_key_file", "server.key")] {
            let path = directory.join(file).display().to_string();
            let set = format!("ALTER SYSTEM SET {name} = '{path}'");
            sql.execute(AssertSqlSafe(set)).await.unwrap();
        }
        sql.execute("ALTER SYSTEM SET ssl = on").await.unwrap();
        sql.execute("SELECT pg_reload_conf()").await.unwrap();
        // The server takes it in when it gets to it.
        let on = async {
            let is_on = || async { sql_text(&cluster.url(), "SHOW ssl").await == "on" };
            while !is_on().await {}
        };
        tokio::time::timeout(Duration::from_secs(60), on).await.unwrap();
        cluster
    }

    async fn sql_text(url: &str, text: &'static str) -> String {
        let mut sql = PgConnection::connect(url).await.unwrap();
        sql.fetch_one(text).await.unwrap().get(0)
    }

    /// Whether each connection of a store is encrypted, that which listens included.
    async fn encrypted(cluster: &Cluster, host: &str, parameters: &str) -> Result<Vec<bool>> {
        let port = cluster.port();
        let url = format!("postgres://postgres@{host}:{port}/postgres?{parameters}");
        let store = PgStore::connect(&url).await?;
        drop(store.listen("c").await?);
        store.queue("q")?.enqueue(&1).await?;
        let mut sql = PgConnection::connect(&cluster.url()).await.unwrap();
        let each = "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
            WHERE application_name = 'alkstore'";
        let rows = sqlx::query(each).fetch_all(&mut sql).await.unwrap();
        store.close().await?;
        // Who looks next finds none of them.
        let gone =
            "SELECT count(*)::text FROM pg_stat_activity WHERE application_name = 'alkstore'";
        let all_gone = async { while sql_text(&cluster.url(), gone).await != "0" {} };
        tokio::time::timeout(Duration::from_secs(60), all_gone).await.unwrap();
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    #[tokio::test]
    async fn every_mode_is_followed() {
        let cluster = with_tls().await;
        let root = |name: &str| format!("sslrootcert={}", cluster.directory().join(name).display());
        let (own, other) = (root("ca.pem"), root("other.pem"));
        // What holds, and whether it is encrypted.
        for (host, parameters, tls) in [
            ("127.0.0.1", "sslmode=disable".to_owned(), false),
            ("127.0.0.1", "sslmode=prefer".to_owned(), true),
            ("127.0.0.1", "sslmode=require".to_owned(), true),
            ("localhost", format!("sslmode=verify-ca&{own}"), true),
            ("127.0.0.1", format!("sslmode=verify-full&{own}"), true),
            ("127.0.0.1", format!("sslmode=require&{own}"), true),
        ] {
            let found = encrypted(&cluster, host, &parameters).await;
            assert_eq!(found.unwrap(), [tls, tls], "{parameters}");
        }
        for (host, parameters) in [
            ("127.0.0.1", "sslmode=verify-ca".to_owned()),
            ("127.0.0.1", "sslmode=verify-full".to_owned()),
            ("127.0.0.1", format!("sslmode=verify-ca&{other}")),
            ("127.0.0.1", format!("sslmode=require&{other}")),
            ("localhost", format!("sslmode=verify-full&{own}")),
        ] {
            let error = engine(encrypted(&cluster, host, &parameters).await.unwrap_err());
            assert!(error.contains("TLS with") && error.contains("certificate"), "{error}");
        }
        let missing = format!("sslmode=verify-full&{}", root("missing.pem"));
        let error = engine(encrypted(&cluster, "127.0.0.1", &missing).await.unwrap_err());
        assert!(error.contains("sslrootcert"), "{error}");
    }

    #[tokio::test]
    async fn a_server_without_tls_is_refused_where_it_is_asked_for() {
        let url = Cluster::shared().url();
        for mode in ["require", "verify-ca", "verify-full"] {
            let error = engine(refusal(&format!("{url}?sslmode={mode}")).await);
            assert!(error.contains("TLS"), "{error}");
        }
        let store = PgStore::connect(&format!("{url}?sslmode=prefer")).await.unwrap();
        store.close().await.unwrap();
    }
}
