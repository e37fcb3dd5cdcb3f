//! What a developer does: clones a repository, asks for its state, and builds it, with the tools themselves.

use super::Figures;
use crate::{Figure, Row, Target};
use perigee_testbed::leftover::Workspace;
use perigee_testbed::{Call, Checked, ensure, pattern};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Sources that are compiled, each with a header of its own.
const SOURCES: usize = 60;
/// Files that lie beside them, so many in a directory.
const OTHERS: usize = 1_500;
const IN_DIRECTORY: usize = 25;

pub(super) fn run(target: &Target, directory: &Path) -> Checked<Figures> {
    // On the local disk, whatever is measured.
    let workspace = Workspace::new()?;
    let origin = workspace.path().join("origin");
    make_repository(&origin)?;
    let clone = directory.join("clone");
    let files = (OTHERS + 2 * SOURCES + 2) as u64;

    target.settle();
    let timed = |command: &mut Command, operations| -> Checked<(Figure, Vec<u8>)> {
        let meter = target.meter();
        let output = tool(command)?;
        Ok((meter.stop().time(operations), output))
    };
    let mut command = git(directory);
    command.args(["clone", "--quiet", "--no-hardlinks"]);
    let (cloned, _) = timed(command.arg(&origin).arg(&clone), files)?;
    target.settle();
    let (status, changes) = timed(git(&clone).args(["status", "--porcelain"]), files)?;
    ensure!(
        changes.is_empty(),
        "git status sees changes in a fresh clone"
    );
    let mut command = Command::new("make");
    let command = command.args(["--silent", "--jobs=2"]).current_dir(&clone);
    let (built, _) = timed(command, SOURCES as u64)?;
    let said = tool(&mut Command::new(clone.join("program")))?;
    let expected = (0..SOURCES).sum::<usize>().to_string();
    ensure!(
        said == expected.as_bytes(),
        "the program that was built says {}",
        String::from_utf8_lossy(&said)
    );
    Ok(vec![
        (Row::GitClone, cloned),
        (Row::GitStatus, status),
        (Row::Build, built),
    ])
}

/// Runs a tool, and gives what it says.
fn tool(command: &mut Command) -> Checked<Vec<u8>> {
    let shown = format!("{command:?}");
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .call(|| shown.clone())?;
    ensure!(output.status.success(), "{shown}: {}", output.status);
    Ok(output.stdout)
}

/// Git, whatever the person who measures has configured.
fn git(directory: &Path) -> Command {
    let mut command = Command::new("git");
    command
        .current_dir(directory)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .args(["-c", "user.name=bench", "-c", "user.email=bench@localhost"]);
    command
}

fn make_repository(origin: &Path) -> Checked {
    let write = |name: &str, content: &[u8]| {
        let path = origin.join(name);
        let parent = path.parent().unwrap_or(origin);
        fs::create_dir_all(parent).call(|| format!("mkdir {}", parent.display()))?;
        fs::write(&path, content).call(|| format!("write {}", path.display()))
    };
    let mut program = String::from("#include <stdio.h>\n");
    let mut sum = String::from("0");
    let mut objects = String::new();
    for number in 0..SOURCES {
        let header = format!("int part_{number}(void);\n");
        write(&format!("part{number}.h"), header.as_bytes())?;
        let source = format!(
            "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include \"part{number}.h\"\n\
             int part_{number}(void) {{ return {number}; }}\n"
        );
        write(&format!("part{number}.c"), source.as_bytes())?;
        // Writing to a string cannot fail.
        _ = writeln!(program, "#include \"part{number}.h\"");
        _ = write!(sum, " + part_{number}()");
        _ = write!(objects, " part{number}.o");
    }
    _ = writeln!(
        program,
        "int main(void) {{ printf(\"%d\", {sum}); return 0; }}"
    );
    write("main.c", program.as_bytes())?;
    let makefile = format!("program: main.o{objects}\n\t$(CC) -o $@ $^\n");
    write("Makefile", makefile.as_bytes())?;
    for number in 0..OTHERS {
        let mut content = vec![0; 200 + (number * 37) % 8_000];
        pattern::fill(number as u64, 0, &mut content);
        let group = number / IN_DIRECTORY;
        write(&format!("data/d{group:02}/f{number:04}"), &content)?;
    }
    tool(git(origin).args(["init", "--quiet"]))?;
    tool(git(origin).args(["add", "."]))?;
    tool(git(origin).args(["commit", "--quiet", "--message=all"]))?;
    Ok(())
}
