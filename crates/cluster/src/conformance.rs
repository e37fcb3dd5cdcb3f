//! What every control store must do, as checks that run against any of them.
