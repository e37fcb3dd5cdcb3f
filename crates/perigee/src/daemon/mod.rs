//! The rooms that do the work, as the command line needs them: the control store, joining a
//! cluster, and a node with its mounts.

mod control;
pub mod findings;
mod join;
mod membership;
mod node;
mod rebalance;
mod rebuild;
mod snapshots;
mod trash;
mod union;

pub use control::{
    address as address_of_control, check_etcd, export_control, first_token, import_control,
    init_control, is_control, move_control, run_control,
};
pub use join::{control_address, cut_off, join, join_again, settle as settle_join};
pub use node::start_node;
pub use rebuild::{
    give_inventory, inventory, plan, put_identities, read_inventories, rebuild, resolve,
    take_back_inventories,
};
pub use union::{HostLine, UnionPlan, serve_branches, serve_union};

use perigee_proto::admin::Failure;
use std::error::Error;

/// A failure with the whole chain of causes, each said once.
fn failure(what: impl Into<String>, error: &dyn Error) -> Failure {
    let mut why = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let text = inner.to_string();
        // some errors say their cause themselves
        if !why.contains(&text) {
            why.push_str(": ");
            why.push_str(&text);
        }
        cause = inner.source();
    }
    let what = what.into();
    // and some say what failed
    let why = why
        .strip_prefix(&format!("{what}: "))
        .unwrap_or(&why)
        .to_owned();
    Failure::new(what, why)
}

/// Runs a short exchange from a command that is no daemon.
fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new("cannot start the runtime", error))?
        .block_on(future)
}

#[cfg(test)]
mod tests {
    use super::failure;
    use std::fmt;

    #[derive(Debug)]
    struct Step(&'static str, Option<Box<Step>>);

    impl fmt::Display for Step {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl std::error::Error for Step {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            self.1.as_ref().map(|step| step.as_ref() as _)
        }
    }

    #[test]
    fn causes_are_said_once_each() {
        let error = Step(
            "cannot listen: address in use",
            Some(Box::new(Step(
                "address in use",
                Some(Box::new(Step("os error 98", None))),
            ))),
        );
        assert_eq!(
            failure("cannot start", &error).why,
            "cannot listen: address in use: os error 98"
        );
        let again = Step("cannot mount on `/m`: no", None);
        assert_eq!(failure("cannot mount on `/m`", &again).why, "no");
    }
}
