//! What becomes of the columns of a striped file that is cut, locked or removed.

mod fixture;

use fixture::{Fs, HERE, ROOT, THERE, USER, granted, lock, session, unlink};
use perigee_meta::stripe::Layout;
use perigee_meta::{LockKind, Op, Patience, Reply, SetAttr, WriteAt};
use perigee_types::limits::FILE_LEN_MAX;
use perigee_types::{ContainerId, Errno, InodeId, StripeWidth};

fn orphans(fs: &mut Fs, container: ContainerId) -> Vec<InodeId> {
    let limit = 100;
    match fs.run(&Op::Orphans {
        container,
        after: None,
        limit,
    }) {
        Ok(Reply::Inodes(inodes)) => inodes,
        other => panic!("{other:?}"),
    }
}

/// A file with one column in the other container, and an attribute.
fn striped(fs: &mut Fs) -> (InodeId, InodeId) {
    fs.width = StripeWidth::of(2).expect("in range");
    let file = fs.file(ROOT, "f");
    fs.setxattr(file, b"user.a", b"1", 0).expect("set");
    let within = vec![THERE];
    let made = fs.run(&Op::MakeColumns {
        inode: file,
        within,
    });
    match made {
        Ok(Reply::Columns { columns, .. }) => (file, columns[0]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_goes_after_its_columns_and_stays_whole_until_then() {
    let mut fs = Fs::new();
    let (file, column) = striped(&mut fs);
    assert!(matches!(fs.attr(column).layout, Layout::Column { of, .. } if of == file));
    let drop = Op::DropColumns { inode: file };
    fs.run(&drop).expect("it has a name");
    assert!(fs.attr(file).layout.has_columns());
    fs.run(&unlink(ROOT, "f")).expect("there");
    // Nothing at all: its owner reaps in the record that takes the name, where it can.
    let reaped = fs.outcome(&Op::Reap { inode: file }).expect("too early");
    assert_eq!(reaped.batches, Default::default());
    assert_eq!(fs.getxattr(file, b"user.a"), Ok(b"1".to_vec()));
    assert_eq!(
        (orphans(&mut fs, HERE), orphans(&mut fs, THERE)),
        (vec![file], vec![])
    );

    fs.run(&drop).expect("it waits for nothing else");
    assert_eq!(orphans(&mut fs, THERE), [column]);
    fs.run(&Op::Reap { inode: file })
        .expect("its columns are dropped");
    fs.run(&Op::Reap { inode: column }).expect("an orphan");
    for inode in [file, column] {
        assert_eq!(fs.run(&Op::GetAttr { inode }), Err(Errno::ESTALE));
    }
    assert_eq!(
        (orphans(&mut fs, HERE), orphans(&mut fs, THERE)),
        (vec![], vec![])
    );
}

#[test]
fn a_cut_waits_for_columns_and_each_column_takes_it_once() {
    let mut fs = Fs::new();
    let (file, column) = striped(&mut fs);
    let resize = |size| SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.set(file, resize(100), USER).expect("it grows");
    fs.set(column, resize(100), USER).expect("it grows");
    let cut = fs.set(file, resize(10), USER).expect("it begins");
    assert_eq!(cut.size, 100);
    let striping = cut.layout.striping().expect("striped");
    assert_eq!(striping.cutting, Some(10));
    assert_eq!(fs.set(file, resize(200), USER), Err(Errno::EAGAIN));
    let (cuts, size) = (striping.cuts, 10);
    let cut_column = Op::CutColumn {
        inode: column,
        cuts,
        size,
    };
    fs.run(&cut_column).expect("of a column");
    assert_eq!(fs.attr(column).size, 10);
    fs.set(column, resize(50), USER).expect("it grows");
    fs.run(&cut_column).expect("late, and known");
    assert_eq!(fs.attr(column).size, 50);
    let inode = file;
    fs.run(&Op::EndCut { inode, cuts, size })
        .expect("its columns are cut");
    assert_eq!(fs.attr(file).size, 10);
    fs.set(file, resize(200), USER).expect("it grows");
    fs.run(&Op::EndCut { inode, cuts, size }).expect("late");
    assert_eq!(fs.attr(file).size, 200);
}

/// Who has lost a lock may know of a cut that is under way: that one begins anew, and the lock is nobody's until it is over.
#[test]
fn a_lock_that_ends_without_a_word_is_a_cut_that_takes_nothing() {
    let mut fs = Fs::new();
    let (file, column) = striped(&mut fs);
    let set = |who, mode| Op::SetLock {
        inode: file,
        session: session(who),
        lock: lock(LockKind::Flock, 1, 0, 0, mode),
        patience: Patience::Refuse,
    };
    let resize = |size| SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    let striping = |fs: &mut Fs| fs.attr(file).layout.striping().expect("striped");
    let expire = Op::ExpireSession {
        container: HERE,
        session: session(1),
    };
    fs.set(file, resize(100), USER).expect("it grows");
    for to in [None, Some(40)] {
        granted(&mut fs, &set(1, Some(true)));
        if let Some(to) = to {
            fs.set(file, resize(to), USER).expect("it begins");
        }
        let before = striping(&mut fs);
        fs.run(&expire).expect("ended");
        let size = to.unwrap_or(FILE_LEN_MAX);
        let after = striping(&mut fs);
        assert_eq!(
            (after.cuts, after.cutting),
            (before.cuts.next_fence(), Some(size))
        );
        assert!(!after.cuts.is_shorter_since(before.cuts));
        // Others write on; what goes beyond the end of a cut that takes something waits.
        let append = fs.run(&Op::Claim {
            inode: file,
            at: WriteAt::End,
            len: 10,
            kill_privileges: false,
        });
        let waits = append == Err(Errno::EAGAIN);
        assert_eq!(waits, to.is_some(), "{append:?}");
        let end = |cuts| Op::EndCut {
            inode: file,
            cuts,
            size,
        };
        fs.run(&end(before.cuts)).expect("of the one before");
        assert_eq!(fs.run(&set(2, Some(true))), Err(Errno::EAGAIN));
        let cuts = after.cuts;
        let cut = Op::CutColumn {
            inode: column,
            cuts,
            size,
        };
        fs.run(&cut).expect("of a column");
        fs.run(&end(cuts)).expect("its columns know it");
        assert_eq!(fs.attr(file).size, to.unwrap_or(110));
        granted(&mut fs, &set(2, Some(true)));
        fs.run(&set(2, None)).expect("given back");
        fs.run(&set(1, None)).expect("it learns");
    }
}
