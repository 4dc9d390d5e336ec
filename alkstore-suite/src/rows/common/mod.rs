//! Rows of docs/architecture/common.md.

mod cancel;
mod capabilities;
mod close;
mod close_wait;
mod errors;
mod headers;
mod ids;
mod names;
mod numbers;
mod paths;
mod payload;
mod time;
mod wake;

pub(crate) use cancel::*;
pub(crate) use capabilities::*;
pub(crate) use close::*;
pub(crate) use close_wait::*;
pub(crate) use errors::*;
pub(crate) use headers::*;
pub(crate) use ids::*;
pub(crate) use names::*;
pub(crate) use numbers::*;
pub(crate) use payload::*;
pub(crate) use time::*;
pub(crate) use wake::*;
