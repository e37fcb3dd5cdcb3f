//! etcd as the control store: a client of its version 3 that keeps what every control store must.
//!
//! Speaks the JSON that etcd itself serves beside gRPC (`/v3/kv/txn` and so on), over HTTP/1.1. Promises: reads
//! are linearizable; an outcome that is not known is told as such; an etcd that lost what it had acknowledged to
//! this process, or is another one, is refused ([`memory`]). May use `cluster` (the trait). Read [`place`] first, then
//! [`client`], [`record`], [`store`], [`watch`] and [`memory`].
#![forbid(unsafe_code)]

mod client;
mod connection;
mod error;
#[cfg(test)]
mod fuzz;
pub mod memory;
pub mod place;
mod record;
mod store;
mod tls;
mod watch;
mod wire;

pub use error::OpenError;
pub use memory::Memory;
pub use place::{Place, PlaceError};
pub use record::{Founding, Record};
pub use store::EtcdControl;
pub use tls::{Credentials, CredentialsError};
