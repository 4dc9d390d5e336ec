//! A pooler in front of the cluster that lends a server's connection for a transaction.
#![allow(clippy::expect_used, clippy::panic, reason = "without it there is no test")]

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use alkstore_suite::pg::{Beside, Cluster, free_port};

/// Where Debian has it, which isn't on everybody's path.
const DEBIAN: &str = "/usr/sbin/pgbouncer";

pub(crate) struct Bouncer {
    pub(crate) url: String,
    _running: Beside,
}

impl Bouncer {
    /// The one pooler that all tests of this process share.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Bouncer> = OnceLock::new();
        SHARED.get_or_init(|| Self::start("shared", 200))
    }

    /// A pooler with so many connections of the server.
    #[expect(clippy::disallowed_methods, reason = "another process is waited for")]
    pub(crate) fn start(name: &str, connections: u32) -> Self {
        let cluster = Cluster::shared();
        let file = |suffix: &str| cluster.directory().join(format!("bouncer-{name}.{suffix}"));
        let port = free_port();
        // The driver sets extra_float_digits, which the pooler has to be told to pass over.
        let ini = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\npool_mode = transaction\n\
             listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = trust\nauth_file = {}\nmax_client_conn = 1000\n\
             default_pool_size = {connections}\nignore_startup_parameters = extra_float_digits\n",
            cluster.port(),
            file("users").display(),
        );
        fs::write(file("ini"), ini).expect("the pooler's settings are written");
        fs::write(file("users"), "\"postgres\" \"\"\n").expect("the pooler's users are written");
        let program = if Path::new(DEBIAN).exists() { DEBIAN } else { "pgbouncer" };
        let running = cluster.beside([program.as_ref(), file("ini").as_os_str()]);
        for _ in 0..1_000 {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Self { url: cluster.url_as("postgres", port), _running: running };
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!(
            "pgbouncer doesn't start (Debian, Ubuntu: apt-get install pgbouncer): {}",
            cluster.log()
        );
    }
}
