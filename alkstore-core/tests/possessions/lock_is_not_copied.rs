//! Who holds it is one.

use alkstore_core::Lock;

fn two(lock: &Lock) -> (Lock, Lock) {
    (lock.clone(), lock.clone())
}

fn main() {}
