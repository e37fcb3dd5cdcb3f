//! What nodes say to each other, and what the command line says to a node.
//!
//! Promises: plain data with one encoding (postcard for bodies between nodes, JSON for the admin
//! socket); decoding never panics and never takes more memory than a frame's limit allows. No I/O.
//! Every room that talks may use it. Read [`service`] first: the whole wire surface on one screen.
#![forbid(unsafe_code)]

pub mod admin;
pub mod message;
pub mod service;

pub use service::{Code, Priority, Retry, Rpc, decode, encode};
