//! The private cluster of tests: it answers, it can be stopped and started, and nothing of it is
//! left when the process that asked for it is gone, however that ended.

#![cfg(all(feature = "pg", unix))]
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use alkstore_suite::pg::{Cluster, ClusterOptions, Shutdown};

/// Set for the process that is killed.
const VICTIM: &str = "ALKSTORE_CLUSTER_VICTIM";

/// Asks the server whether it speaks TLS, which it answers before anything else.
fn answers(port: u16) -> bool {
    let Ok(mut connection) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    let request = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];
    let mut answer = [0];
    connection.write_all(&request).is_ok()
        && connection.read_exact(&mut answer).is_ok()
        && matches!(answer, [b'N' | b'S'])
}

#[expect(clippy::disallowed_methods, reason = "another process is waited for")]
fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..3_000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{what}: not within 30 s");
}

/// The name is what scripts/test leaves these out by, where it is asked to.
mod needs_postgres {
    use super::*;

    #[test]
    fn a_cluster_is_stopped_and_started_at_its_port_and_gone_when_dropped() {
        let cluster = Cluster::start(ClusterOptions::new().setting("max_connections", "20"));
        let (port, dir) = (cluster.port(), cluster.directory().to_owned());
        assert!(answers(port), "{}", cluster.log());
        assert_ne!(cluster.fresh_schema(), cluster.fresh_schema());
        for how in [Shutdown::Fast, Shutdown::Immediate] {
            cluster.stop(how);
            assert!(!answers(port));
            cluster.resume();
            assert!(answers(port), "{}", cluster.log());
        }
        cluster.demote();
        cluster.promote();
        assert!(answers(port), "{}", cluster.log());
        drop(cluster);
        assert!(!answers(port));
        assert!(!dir.exists());
    }

    /// The other process of the test below; by itself it has nothing to do.
    #[test]
    fn victim() {
        if std::env::var_os(VICTIM).is_none() {
            return;
        }
        let cluster = Cluster::shared();
        println!("\ncluster {} {}", cluster.port(), cluster.directory().display());
        // Until it is killed: this input doesn't end.
        let _ = std::io::stdin().read(&mut [0]);
    }

    #[test]
    fn a_killed_process_leaves_nothing_behind() {
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "needs_postgres::victim", "--nocapture"])
            .env(VICTIM, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        let line = lines.map_while(Result::ok).find(|line| line.starts_with("cluster ")).unwrap();
        let mut words = line.split(' ').skip(1);
        let port = words.next().unwrap().parse().unwrap();
        let dir = Path::new(words.next().unwrap());
        assert!(answers(port) && dir.exists());
        victim.kill().unwrap();
        victim.wait().unwrap();
        until("the directory is deleted", || !dir.exists());
        assert!(!answers(port));
    }
}
