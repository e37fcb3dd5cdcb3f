//! The laws that a replicated container keeps, one file each; checked while a history runs.

pub mod coherent;
pub mod control_store;
pub mod home;
pub mod no_wrong_bytes;
pub mod one_owner;
pub mod replicated;
pub mod well_again;
