//! Where the programs of Postgres lie, and whom they may run as.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where Debian and Ubuntu keep them, a directory a version.
const DEBIAN: &str = "/usr/lib/postgresql";

/// The programs of the newest Postgres there is.
#[derive(Debug)]
pub(super) struct Programs {
    /// The directory of `initdb`, `pg_ctl` and `postgres`.
    pub(super) bin: PathBuf,
    /// Whom they have to run as; `None` where this process's own user will do.
    pub(super) user: Option<User>,
}

#[derive(Debug)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) id: u32,
}

impl Programs {
    pub(super) fn find() -> Result<Self, String> {
        let bin = installed().or_else(on_path).ok_or_else(|| {
            format!(
                "no Postgres server: there is no initdb under {DEBIAN}/*/bin nor on PATH; \
                 install it (Debian, Ubuntu: apt-get install postgresql), or leave these tests \
                 out with ALKSTORE_SKIP=pg scripts/test"
            )
        })?;
        Ok(Self { bin, user: user()? })
    }
}

fn is_complete(bin: &Path) -> bool {
    ["initdb", "pg_ctl", "postgres"].iter().all(|program| bin.join(program).is_file())
}

fn installed() -> Option<PathBuf> {
    let versions = fs::read_dir(DEBIAN).ok()?.flatten().map(|entry| entry.path());
    versions
        .filter_map(|path| {
            let version: u32 = path.file_name()?.to_str()?.parse().ok()?;
            let bin = path.join("bin");
            is_complete(&bin).then_some((version, bin))
        })
        .max()
        .map(|(_, bin)| bin)
}

fn on_path() -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).find(|dir| is_complete(dir))
}

/// Postgres refuses to run as root, so root has it run as the user of its packages.
fn user() -> Result<Option<User>, String> {
    if id(&[])? != 0 {
        return Ok(None);
    }
    let name = "postgres";
    let id = id(&[name]).map_err(|error| {
        format!(
            "Postgres doesn't run as root, and there is no user {name} ({error}); create it, \
             or run the tests as an ordinary user"
        )
    })?;
    Ok(Some(User { name: name.to_owned(), id }))
}

/// A user's number, this process's own where none is named.
fn id(of: &[&str]) -> Result<u32, String> {
    let output = Command::new("id").arg("-u").args(of).output();
    let output = output.map_err(|error| format!("the program id doesn't run: {error}"))?;
    let number = String::from_utf8_lossy(&output.stdout).trim().parse();
    number.map_err(|_| String::from_utf8_lossy(&output.stderr).trim().to_owned())
}
