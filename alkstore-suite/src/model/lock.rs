//! What a lock does.

use std::time::Duration;

use super::answer::{Fault, LockView};
use super::time::later;

#[derive(Debug, Clone)]
pub(super) struct Lock {
    name: String,
    /// The largest token ever given.
    last: u64,
    held: Option<Held>,
}

#[derive(Debug, Clone)]
struct Held {
    owner: String,
    expires_at: i64,
}

/// The acquisition that a handle stands for.
#[derive(Debug, Clone)]
pub(super) struct Holding {
    pub(super) name: String,
    pub(super) token: u64,
}

impl Lock {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), last: 0, held: None }
    }

    /// The token is the engine's choice where it grows.
    pub(super) fn acquire(
        &mut self,
        now: i64,
        owner: &str,
        ttl: Duration,
        token: Option<u64>,
    ) -> Option<(u64, i64)> {
        if self.is_held(now) {
            return None;
        }
        self.last = token.filter(|token| *token > self.last).unwrap_or(self.last + 1);
        let expires_at = later(now, ttl);
        self.held = Some(Held { owner: owner.to_owned(), expires_at });
        Some((self.last, expires_at))
    }

    pub(super) fn is_held(&self, now: i64) -> bool {
        self.held.as_ref().is_some_and(|held| now < held.expires_at)
    }

    fn is_held_by(&self, now: i64, token: u64) -> bool {
        self.is_held(now) && token == self.last
    }

    pub(super) fn renew(&mut self, now: i64, token: u64, ttl: Duration) -> Result<i64, Fault> {
        if !self.is_held_by(now, token) {
            return Err(Fault::LockLost);
        }
        let expires_at = later(now, ttl);
        if let Some(held) = &mut self.held {
            held.expires_at = expires_at;
        }
        Ok(expires_at)
    }

    pub(super) fn release(&mut self, now: i64, token: u64) -> Result<(), Fault> {
        if !self.is_held_by(now, token) {
            return Err(Fault::LockLost);
        }
        self.held = None;
        Ok(())
    }

    pub(super) fn expiry(&self) -> Option<i64> {
        Some(self.held.as_ref()?.expires_at)
    }

    pub(super) fn view(&self, now: i64) -> Option<LockView> {
        let held = self.held.as_ref().filter(|_| self.is_held(now))?;
        Some(LockView {
            name: self.name.clone(),
            owner: held.owner.clone(),
            token: self.last,
            expires_at: held.expires_at,
        })
    }
}
