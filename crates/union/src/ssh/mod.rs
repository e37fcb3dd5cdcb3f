//! Members on other hosts, with nothing but SSH.

pub mod agent;
pub mod carry;
pub mod launch;
pub mod starter;
pub mod target;

/// What tells this host from others, as long as it runs; empty where the system does not say.
#[must_use]
pub fn boot() -> String {
    let told = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    told.map(|id| id.trim().to_owned()).unwrap_or_default()
}
