//! What nodes say to each other, and what the command line says to a node.
#![forbid(unsafe_code)]

pub mod admin;
