//! An empty directory that goes to another container.

mod fixture;

use fixture::{Fs, HERE, ROOT, THERE, make, unlink};
use perigee_meta::{Attr, NewNode, Op, Reply};
use perigee_types::{ContainerId, Errno, InodeId};

fn rehome(name: &str, container: ContainerId) -> Op {
    Op::Rehome {
        parent: ROOT,
        name: name.into(),
        container,
        policy: vec![("copies".to_owned(), "1".to_owned())],
    }
}

fn named(fs: &mut Fs, name: &str) -> Attr {
    let op = Op::Lookup {
        parent: ROOT,
        name: name.into(),
    };
    match fs.run(&op) {
        Ok(Reply::Entry(attr)) => attr,
        Ok(Reply::Leads(inode)) => fs.attr(inode),
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn it_keeps_what_it_is_and_what_is_made_in_it_is_there() {
    let mut fs = Fs::new();
    let old = fs.make(ROOT, "d", NewNode::Directory, 0o2750);
    fs.setxattr(old.inode, b"user.a", b"1", 0).expect("set");
    fs.setxattr(old.inode, b"user.b", b"2", 0).expect("set");
    let root = fs.attr(ROOT);
    let reply = fs.run(&rehome("d", THERE));
    let new = named(&mut fs, "d");
    let moved = new.inode;
    let replaced = Some(old.inode);
    assert_eq!(reply, Ok(Reply::Renamed { moved, replaced }));
    assert_eq!(moved.container(), THERE);
    let kept = |attr: &Attr| (attr.mode, attr.uid, attr.gid, attr.nlink, attr.mtime);
    assert_eq!(kept(&new), kept(&old));
    assert_eq!(fs.getxattr(moved, b"user.a"), Ok(b"1".to_vec()));
    assert_eq!(fs.getxattr(moved, b"user.b"), Ok(b"2".to_vec()));
    assert_eq!(fs.attr(ROOT).nlink, root.nlink);
    let policy = fs.run(&Op::GetPolicy { inode: moved });
    assert!(matches!(policy, Ok(Reply::Policy(settings)) if settings[0].from == moved));

    let file = fs.file(moved, "f");
    let below = fs.dir(moved, "sub");
    assert_eq!((file.container(), below.container()), (THERE, THERE));
    let op = Op::Lookup {
        parent: moved,
        name: b"..".to_vec(),
    };
    assert_eq!(fs.run(&op), Ok(Reply::Leads(ROOT)));

    // The old one takes no names, and goes when nobody has it open.
    let late = fs.run(&make(old.inode, "late", NewNode::File, 0o644));
    assert_eq!(late, Err(Errno::ENOENT));
    let (container, limit) = (HERE, 9);
    let orphans = fs.run(&Op::Orphans {
        container,
        after: None,
        limit,
    });
    assert_eq!(orphans, Ok(Reply::Inodes(vec![old.inode])));
    fs.run(&Op::Reap { inode: old.inode }).expect("reaped");
    let index = old.inode.index();
    let left = perigee_meta::key::xattrs(index);
    let state = &fs.view.states[&HERE];
    assert_eq!(state.range(left.0..left.1).count(), 0, "attributes go too");
}

#[test]
fn what_has_content_or_is_no_directory_stays() {
    let mut fs = Fs::new();
    let dir: InodeId = fs.dir(ROOT, "d");
    fs.file(ROOT, "f");
    fs.file(dir, "content");
    assert_eq!(fs.run(&rehome("d", THERE)), Err(Errno::ENOTEMPTY));
    assert_eq!(fs.run(&rehome("f", THERE)), Err(Errno::ENOTDIR));
    assert_eq!(fs.run(&rehome("none", THERE)), Err(Errno::ENOENT));
    assert_eq!(fs.run(&rehome("d", HERE)), Err(Errno::EINVAL));
    fs.run(&unlink(dir, "content")).expect("removed");
    assert_eq!(named(&mut fs, "d").inode, dir);
    fs.run(&rehome("d", THERE)).expect("empty now");
    let back = fs.run(&rehome("d", HERE));
    assert!(back.is_ok(), "and back again: {back:?}");
    assert_ne!(named(&mut fs, "d").inode, dir, "numbers are not used twice");
}
