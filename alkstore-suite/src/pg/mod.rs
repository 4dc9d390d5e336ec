//! A private Postgres for tests: a cluster of its own in a temporary directory, on a port of its
//! own, which nothing else on the machine sees and which is gone when the test process is,
//! however that ends.

mod programs;

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use programs::{Programs, User};

const KEEPER: &str = include_str!("keeper.sh");

/// Runs a program until the input ends.
const BESIDE: &str = r#""$@" </dev/null & child=$!; while read -r _; do :; done; kill "$child""#;

/// How often another port is tried where somebody else took the one that was free.
const PORTS_TRIED: u32 = 5;

/// How a cluster is started.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ClusterOptions {
    /// Whether commits wait for the disk. Off, a restart of the cluster keeps what was committed,
    /// and a crash of the machine doesn't.
    pub fsync: bool,
    /// Settings of `postgresql.conf`, for instance `("max_connections", "20")`. They win over the
    /// harness's own.
    pub settings: Vec<(String, String)>,
}

impl ClusterOptions {
    /// A cluster for tests.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether commits wait for the disk.
    #[must_use]
    pub fn fsync(mut self, fsync: bool) -> Self {
        self.fsync = fsync;
        self
    }

    /// A setting of `postgresql.conf`.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// How a cluster is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// Transactions are rolled back, connections ended, and everything is written out.
    Fast,
    /// As a crash: connections break and the next start recovers.
    Immediate,
}

impl Shutdown {
    fn word(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Immediate => "immediate",
        }
    }
}

/// A running cluster of Postgres.
///
/// A shell process keeps it, and stops and deletes it when this process is gone: a static is never
/// dropped, and a process that is killed drops nothing.
#[derive(Debug)]
pub struct Cluster {
    dir: PathBuf,
    port: u16,
    user: Option<User>,
    options: ClusterOptions,
    schemas: AtomicU32,
    keeper: Mutex<Keeper>,
}

#[derive(Debug)]
struct Keeper {
    shell: Child,
    answers: BufReader<ChildStdout>,
}

impl Keeper {
    fn tell(&mut self, order: &str) -> bool {
        let mut answer = String::new();
        let orders = self.shell.stdin.as_mut().expect("the pipe that was asked for");
        writeln!(orders, "{order}").expect("the keeper of the cluster takes orders");
        self.answers.read_line(&mut answer).expect("the keeper of the cluster answers");
        answer.trim() == "ok"
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // Waiting closes the pipe first, which is the last order.
        let _ = self.shell.wait();
    }
}

/// A program that runs beside the cluster. Dropped, it is ended.
#[derive(Debug)]
pub struct Beside(Child);

impl Drop for Beside {
    fn drop(&mut self) {
        // Waiting closes the pipe first, which ends it.
        let _ = self.0.wait();
    }
}

impl Cluster {
    /// The one cluster that all tests of this process share.
    ///
    /// # Panics
    ///
    /// Where it doesn't start; the message says why and what to do.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Cluster> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(ClusterOptions::new()))
    }

    /// A cluster of its own, for a test that stops it. It is gone once it is dropped.
    ///
    /// # Panics
    ///
    /// Where it doesn't start; the message says why and what to do.
    #[must_use]
    pub fn start(options: ClusterOptions) -> Self {
        let programs = Programs::find().unwrap_or_else(|error| panic!("{error}"));
        let dir = directory();
        if let Some(user) = &programs.user {
            chown(&dir, Some(user.id), None).expect("the cluster's directory gets its owner");
        }
        let keeper = Mutex::new(keeper(&programs, &dir));
        let user = programs.user;
        let schemas = AtomicU32::new(0);
        let mut cluster = Self { dir, port: 0, user, options, schemas, keeper };
        cluster.tell("create");
        for tried in 1.. {
            cluster.port = free_port();
            cluster.configure();
            if cluster.try_tell("start") {
                break;
            }
            assert!(tried < PORTS_TRIED, "Postgres doesn't start: {}", cluster.log());
        }
        cluster
    }

    /// Where it listens, as a superuser's address without a password.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_as("postgres", self.port)
    }

    /// The address of another user, or through another port: a proxy's.
    #[must_use]
    pub fn url_as(&self, user: &str, port: u16) -> String {
        format!("postgres://{user}@127.0.0.1:{port}/postgres")
    }

    /// The port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// A directory that lives as long as the cluster.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.dir
    }

    /// The user of the machine that servers run as; `None` where this process's own will do.
    #[must_use]
    pub fn user(&self) -> Option<&str> {
        self.user.as_ref().map(|user| user.name.as_str())
    }

    /// The name of a schema that no other test has. It needs quoting in SQL, as a name of an
    /// application's may.
    #[must_use]
    pub fn fresh_schema(&self) -> String {
        format!("Test {}", self.schemas.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Stops it and starts it again, at the same port.
    ///
    /// # Panics
    ///
    /// Where it doesn't stop or start.
    pub fn restart(&self, how: Shutdown) {
        self.stop(how);
        self.resume();
    }

    /// Stops it.
    ///
    /// # Panics
    ///
    /// Where it doesn't stop.
    pub fn stop(&self, how: Shutdown) {
        self.tell(&format!("stop {}", how.word()));
    }

    /// Starts it again after [`stop`](Self::stop).
    ///
    /// # Panics
    ///
    /// Where it doesn't start.
    pub fn resume(&self) {
        self.tell("start");
    }

    /// Restarts it as a standby without a primary: it can be read only.
    ///
    /// # Panics
    ///
    /// Where it doesn't stop or start.
    pub fn demote(&self) {
        self.stop(Shutdown::Fast);
        self.tell("standby");
        self.resume();
    }

    /// Makes a standby writable again.
    ///
    /// # Panics
    ///
    /// Where it isn't a standby.
    pub fn promote(&self) {
        self.tell("promote");
    }

    /// Runs another program as the user of the cluster, until what is returned is dropped or this
    /// process is gone, however that ends. What it writes is in the cluster's log.
    ///
    /// # Panics
    ///
    /// Where it doesn't start.
    pub fn beside<S: AsRef<OsStr>>(&self, command: impl IntoIterator<Item = S>) -> Beside {
        let log =
            fs::OpenOptions::new().append(true).create(true).open(self.dir.join("server.log"));
        let log = log.expect("the cluster's log can be written");
        let mut shell = Command::new("sh");
        shell.args(["-c", BESIDE, "beside"]).args(command);
        shell.stdin(Stdio::piped()).stderr(log.try_clone().expect("a second handle")).stdout(log);
        if let Some(user) = &self.user {
            shell.uid(user.id);
        }
        Beside(shell.process_group(0).spawn().expect("a shell starts"))
    }

    /// The end of what the server, and the programs that start and stop it, have written.
    #[must_use]
    pub fn log(&self) -> String {
        let end_of = |name: &str| {
            let log = fs::read(self.dir.join(name)).unwrap_or_default();
            let text = String::from_utf8_lossy(&log);
            let lines: Vec<_> = text.lines().collect();
            lines[lines.len().saturating_sub(30)..].join("\n")
        };
        format!("{}\n{}", end_of("keeper.log"), end_of("server.log"))
    }

    fn try_tell(&self, order: &str) -> bool {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner).tell(order)
    }

    fn tell(&self, order: &str) {
        assert!(self.try_tell(order), "Postgres: {order} failed: {}", self.log());
    }

    fn configure(&self) {
        // Many tests at a time, each with some pools.
        let mut conf = format!(
            "listen_addresses = '127.0.0.1'\nport = {}\nunix_socket_directories = '{}'\n\
             hba_file = '{}'\nmax_connections = 500\nshared_buffers = 64MB\n\
             timezone = 'UTC'\nlog_timezone = 'UTC'\n",
            self.port,
            self.dir.display(),
            self.dir.join("hba.conf").display(),
        );
        if !self.options.fsync {
            conf += "fsync = off\nfull_page_writes = off\n";
        }
        for (name, value) in &self.options.settings {
            let _ = writeln!(conf, "{name} = '{}'", value.replace('\'', "''"));
        }
        fs::write(self.dir.join("cluster.conf"), conf).expect("the cluster's settings are written");
        // A test of passwords makes a role in this group.
        let hba = "host all +with_password 127.0.0.1/32 scram-sha-256\n\
                   host all all 127.0.0.1/32 trust\nlocal all all trust\n";
        fs::write(self.dir.join("hba.conf"), hba).expect("the cluster's access rules are written");
    }
}

fn keeper(programs: &Programs, dir: &Path) -> Keeper {
    let mut shell = Command::new("sh")
        .args(["-c", KEEPER, "keeper"])
        .args([&programs.bin, dir])
        .args(programs.user.iter().map(|user| &user.name))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // A Ctrl-C is for the tests; the keeper goes once they are gone.
        .process_group(0)
        .spawn()
        .expect("a shell starts");
    let answers = BufReader::new(shell.stdout.take().expect("the pipe that was asked for"));
    Keeper { shell, answers }
}

/// A directory that no other test process has. Its name is short: a socket lies in it.
fn directory() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let process = std::process::id();
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("alkstore-pg-{process}-{number}"));
        match fs::DirBuilder::new().mode(0o700).create(&dir) {
            Ok(()) => return dir,
            // Of a process that had the same number.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => panic!("{} can't be created: {error}", dir.display()),
        }
    }
}

/// A port on 127.0.0.1 that nobody listens on.
///
/// # Panics
///
/// Where there is none.
#[must_use]
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its number").port()
}
