//! What an attacker has: sockets, certificates, and a member's place.
#![allow(dead_code, reason = "each test file uses a part")]

pub mod client;
pub mod guest;
pub mod logs;
pub mod sockets;
pub mod wire;
