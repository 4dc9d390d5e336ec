//! A password is in no error, no log and no `Debug`, wherever it came from.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test fails by a panic, and another process says what it sees by its output"
)]

use std::error::Error as StdError;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use alkstore_core::{Error, StoreExt};
use alkstore_pg::sqlx::postgres::PgConnection;
use alkstore_pg::sqlx::{Connection, Executor};
use alkstore_pg::{PgStore, PgTx};
use alkstore_suite::pg::Cluster;

const TEST: &str = "no_password_is_shown";

/// What tells a process that it is one that shows all it can: the server's port.
const PORT: &str = "ALKSTORE_TEST_PORT";

/// In the right password and in the wrong one.
const SECRET: &str = "s3cret";
const RIGHT: &str = "s3cret horse";
const WRONG: &str = "s3cret cow";

fn show(error: &Error) {
    println!("{error} / {error:?} / {error:#?}");
    let mut source = error.source();
    while let Some(inner) = source {
        println!("{inner} / {inner:?}");
        source = inner.source();
    }
}

async fn show_open(url: &str, patience: Duration) {
    let builder = PgStore::builder(url).listen_url(url);
    println!("{builder:?} / {builder:#?}");
    let store = match builder.operation_timeout(patience).connect().await {
        Ok(store) => store,
        Err(error) => return show(&error),
    };
    println!("opened {store:?} / {store:#?} / {:?}", store.data());
    let queue = store.queue("q").unwrap();
    queue.enqueue(&1).await.unwrap();
    let mut tx = store.begin_tx().await.unwrap();
    let own = tx.engine::<PgTx>().unwrap();
    println!("{queue:?} / {own:?}");
    let failed = own.connection().execute("SELECT 1 / 0").await.unwrap_err();
    println!("{failed} / {failed:?}");
    show(&tx.commit().await.unwrap_err());
    println!("{:?}", store.listen("c").await.unwrap());
    store.close().await.unwrap();
    show(&queue.enqueue(&1).await.unwrap_err());
}

/// Shows all that can be seen of opens that fail, and of one that doesn't where the password is
/// the right one; with everything that is logged.
async fn show_all(port: &str) {
    tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_ansi(false).init();
    tracing::trace!("the log is on");
    let user_info = std::env::var("ALKSTORE_TEST_USER").unwrap();
    let address = format!("postgres://{user_info}@127.0.0.1:{port}/postgres");
    let long = Duration::from_secs(20);
    show_open(&address, long).await;
    for rest in ["?sslmode=require", "?sslmode=requrie", "?passwd=s3cret", "?sslpassword=s3cret"] {
        show_open(&format!("{address}{rest}"), long).await;
    }
    // Nobody listens there.
    let nobody = format!("postgres://{user_info}@127.0.0.1:1/postgres");
    show_open(&nobody, Duration::from_millis(200)).await;
    show_open(&format!("postgres://{user_info}@127.0.0.1:port/postgres"), long).await;
    show_open(&format!("postgres://{user_info}@127.0.0.1:{port}/missing"), long).await;
}

#[tokio::test]
async fn no_password_is_shown() {
    if let Ok(port) = std::env::var(PORT) {
        return show_all(&port).await;
    }
    let cluster = Cluster::shared();
    let roles = "CREATE ROLE with_password NOLOGIN;
        CREATE ROLE guarded LOGIN SUPERUSER PASSWORD 's3cret horse' IN ROLE with_password";
    PgConnection::connect(&cluster.url()).await.unwrap().execute(roles).await.unwrap();
    let passfile = cluster.directory().join("passfile");
    let port = cluster.port().to_string();
    let show = |user: &str, variable: Option<(&str, &str)>| {
        let mut other = Command::new(std::env::current_exe().unwrap());
        other.args([TEST, "--exact", "--nocapture", "--test-threads=1"]);
        // Where there is no passfile of the developer's.
        other.env("HOME", cluster.directory()).env(PORT, &port).env("ALKSTORE_TEST_USER", user);
        other.env_remove("PGPASSWORD").env_remove("PGPASSFILE").envs(variable);
        let output = other.output().unwrap();
        let seen = [output.stdout, output.stderr].concat();
        let seen = String::from_utf8_lossy(&seen).into_owned();
        assert!(output.status.success(), "{seen}");
        assert!(seen.contains("the log is on"), "{seen}");
        assert!(!seen.contains(SECRET), "{user}, {variable:?}: {seen}");
        seen
    };
    for (password, says) in [(WRONG, "authentication failed"), (RIGHT, "opened PgStore")] {
        let seen = show(&format!("guarded:{}", password.replace(' ', "%20")), None);
        assert!(seen.contains(says), "{seen}");
        let seen = show("guarded", Some(("PGPASSWORD", password)));
        assert!(seen.contains(says), "{seen}");
        fs::write(&passfile, format!("# a comment\n127.0.0.1:{port}:*:guarded:{password}\n"))
            .unwrap();
        fs::set_permissions(&passfile, fs::Permissions::from_mode(0o600)).unwrap();
        let named = Some(("PGPASSFILE", passfile.to_str().unwrap()));
        let seen = show("guarded", named);
        assert!(seen.contains(says), "{seen}");
        // As people write it who think that it is all there is to write.
        fs::write(&passfile, format!("{password}\n")).unwrap();
        let seen = show("guarded", named);
        assert!(seen.contains("line 1 of"), "{seen}");
    }
}
