//! Where log lines go: standard error, which is the log file of a detached process.

use perigee_net::AUDIT;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Overrides the level of the configuration, with tracing's filter syntax: `debug`, `perigee_net=trace`.
pub const LEVEL_VARIABLE: &str = "PERIGEE_LOG";

/// Begins logging at `level`, or at what [`LEVEL_VARIABLE`] says. Lines of the audit are written at any level.
pub fn begin(level: &str) {
    let wanted = std::env::var(LEVEL_VARIABLE).unwrap_or_else(|_| level.to_owned());
    // The last of two that name a target holds.
    let with_audit = |wanted: &str| EnvFilter::try_new(format!("{wanted},{AUDIT}=info"));
    let filter = with_audit(&wanted).unwrap_or_else(|_| EnvFilter::new("info"));
    let begun = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        // A line that cannot be written (the disk is full) would be reported to standard error, with a panic where
        // that fails too.
        .log_internal_errors(false)
        .try_init();
    if begun.is_err() {
        tracing::warn!("logging had begun already");
    }
}
