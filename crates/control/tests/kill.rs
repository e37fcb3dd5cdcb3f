//! A real process, killed at any moment: what it acknowledged is there.
#![expect(clippy::unwrap_used, reason = "a test that fails says so")]

use perigee_cluster::{ControlStore as _, Txn};
use perigee_control::{Engine, EngineConfig, LocalControl};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const DIR: &str = "PERIGEE_TEST_CONTROL_DIR";

fn config() -> EngineConfig {
    EngineConfig {
        // often enough that some kill hits a switch
        log_len: 2000,
        ..EngineConfig::default()
    }
}

fn open(dir: &Path) -> LocalControl {
    LocalControl::new(Arc::new(Engine::open(dir, config()).unwrap()))
}

/// Not a test of its own: what the child process does. Counts up, and says each number once it is
/// acknowledged.
#[tokio::test]
async fn child() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let store = open(Path::new(&dir));
    let found = store.get("/n").await.unwrap();
    let first = found.map_or(0, |kv| {
        String::from_utf8(kv.value).unwrap().parse().unwrap()
    });
    for n in first + 1_u64.. {
        let txn = Txn::default().put("/n", n.to_string().into_bytes());
        store.commit(txn).await.unwrap();
        // around what captures the output of tests
        let said = std::io::stderr()
            .lock()
            .write_all(format!("said {n}\n").as_bytes());
        said.unwrap();
    }
}

#[tokio::test]
async fn what_a_killed_process_acknowledged_is_there() {
    let dir = tempfile::tempdir().unwrap();
    drop(Engine::create(dir.path(), config()).unwrap());
    let mut last = 0;
    for round in 0..12 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env(DIR, dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let said = std::thread::spawn(move || {
            let numbers = lines.map_while(Result::ok);
            let numbers = numbers.filter_map(|line| line.strip_prefix("said ")?.parse().ok());
            numbers.last().unwrap_or(0_u64)
        });
        tokio::time::sleep(Duration::from_millis(150 + 23 * round)).await;
        child.kill().unwrap();
        child.wait().unwrap();
        let said = said.join().unwrap().max(last);
        let store = open(dir.path());
        let found = store
            .get("/n")
            .await
            .unwrap()
            .map(|kv| String::from_utf8(kv.value).unwrap());
        let found: u64 = found.map_or(0, |text| text.parse().unwrap());
        assert!(
            found == said || found == said + 1,
            "{found} after {said} in round {round}"
        );
        last = found;
    }
    assert!(last > 24, "the children did too little: {last}");
}
