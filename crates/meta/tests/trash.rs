//! What is removed under a policy that keeps it, and how it comes back.

mod fixture;

use fixture::{Fs, HERE, ROOT, THERE, USER, at, rename, unlink};
use perigee_meta::{
    Attr, Credential, Kind, Nearest, NewNode, Op, RenameMode, Reply, SetAttr, TrashId, Trashed,
    nearest_setting,
};
use perigee_types::{ContainerId, Errno, InodeId};

const SUPERUSER: Credential = Credential { uid: 0, gid: 0 };
const OTHER: Credential = Credential { uid: 9, gid: 9 };

fn keeping() -> Fs {
    let mut fs = Fs::new();
    fs.keep_until = Some(at(1_000));
    fs
}

fn trash(fs: &mut Fs, container: ContainerId) -> Vec<Trashed> {
    let op = Op::Trash {
        container,
        after: None,
        limit: 100,
    };
    match fs.run(&op) {
        Ok(Reply::Trash(rows)) => rows,
        other => panic!("{other:?}"),
    }
}

fn orphans(fs: &mut Fs) -> Vec<InodeId> {
    let (container, limit) = (HERE, 100);
    match fs.run(&Op::Orphans {
        container,
        after: None,
        limit,
    }) {
        Ok(Reply::Inodes(inodes)) => inodes,
        other => panic!("{other:?}"),
    }
}

fn undelete(
    fs: &mut Fs,
    id: TrashId,
    to: (InodeId, &str),
    cred: Credential,
) -> Result<Attr, Errno> {
    let op = Op::Undelete {
        id,
        new_parent: to.0,
        new_name: to.1.into(),
        cred,
    };
    match fs.run(&op)? {
        Reply::Entry(attr) => Ok(attr),
        other => panic!("{other:?}"),
    }
}

fn purge(fs: &mut Fs, id: TrashId, cred: Credential) -> Vec<InodeId> {
    let op = Op::Purge {
        container: id.inode.container(),
        entries: vec![id],
        cred,
    };
    match fs.run(&op) {
        Ok(Reply::Inodes(inodes)) => inodes,
        other => panic!("{other:?}"),
    }
}

fn rmdir(parent: InodeId, name: &str) -> Op {
    Op::Rmdir {
        parent,
        name: name.into(),
        cred: USER,
    }
}

#[test]
fn what_is_kept_comes_back_as_it_was() {
    let mut fs = keeping();
    let dir = fs.dir(ROOT, "d");
    let file = fs.file(dir, "f");
    fs.setxattr(file, b"user.a", b"1", 0).expect("set");
    let set = SetAttr {
        mode: Some(0o640),
        size: Some(5_000),
        ..SetAttr::default()
    };
    fs.set(file, set, USER).expect("set");
    let link = fs
        .make(dir, "s", NewNode::Symlink(b"there".to_vec()), 0)
        .inode;
    let before = fs.attr(file);
    fs.run(&unlink(dir, "f")).expect("there");
    fs.run(&unlink(dir, "s")).expect("there");
    assert_eq!(fs.attr(file).nlink, 0);
    assert_eq!(orphans(&mut fs), vec![], "nobody is to reap it");
    fs.run(&Op::Reap { inode: file }).expect("nothing to do");

    let rows = trash(&mut fs, HERE);
    let [first, second] = &rows[..] else {
        panic!("{rows:?}")
    };
    assert_eq!((&*first.name, first.parent, first.by), (&b"f"[..], dir, 7));
    assert_eq!((first.kind, first.size), (Kind::File, 5_000));
    assert_eq!((first.mode, first.uid, first.gid), (0o640, 7, 8));
    assert!(!first.id.is_due(at(999)) && first.id.is_due(at(1_000)));

    let back = undelete(&mut fs, first.id, (dir, "f"), USER).expect("kept");
    let ctime = back.ctime;
    assert_eq!(back, Attr { ctime, ..before });
    assert_eq!(fs.getxattr(file, b"user.a"), Ok(b"1".to_vec()));
    undelete(&mut fs, second.id, (ROOT, "elsewhere"), SUPERUSER).expect("kept");
    let target = fs.run(&Op::ReadLink { inode: link });
    assert_eq!(target, Ok(Reply::Bytes(b"there".to_vec())));
    assert_eq!(trash(&mut fs, HERE), vec![]);
    let again = undelete(&mut fs, second.id, (ROOT, "again"), SUPERUSER);
    assert_eq!(again.map(|_| ()), Err(Errno::ENOENT));
}

#[test]
fn only_a_last_name_is_kept() {
    let mut fs = keeping();
    let file = fs.file(ROOT, "a");
    let link = Op::Link {
        inode: file,
        new_parent: ROOT,
        new_name: b"b".to_vec(),
        cred: USER,
    };
    fs.run(&link).expect("made");
    fs.run(&unlink(ROOT, "a")).expect("there");
    assert_eq!(trash(&mut fs, HERE), vec![]);
    fs.run(&unlink(ROOT, "b")).expect("there");
    let rows = trash(&mut fs, HERE);
    assert_eq!(rows.len(), 1);
    let back = undelete(&mut fs, rows[0].id, (ROOT, "b"), SUPERUSER).expect("kept");
    assert_eq!(back.nlink, 1);
    fs.keep_until = None;
    fs.run(&unlink(ROOT, "b")).expect("there");
    assert_eq!(
        (trash(&mut fs, HERE), orphans(&mut fs)),
        (vec![], vec![file])
    );
}

#[test]
fn what_a_rename_replaces_is_kept_and_nothing_is_overwritten() {
    let mut fs = keeping();
    let old = fs.file(ROOT, "f");
    fs.file(ROOT, "new");
    fs.rename((ROOT, "new"), (ROOT, "f")).expect("replaces");
    let rows = trash(&mut fs, HERE);
    assert_eq!((rows.len(), rows[0].id.inode), (1, old));
    assert_eq!(rows[0].name, b"f");
    let over = undelete(&mut fs, rows[0].id, (ROOT, "f"), SUPERUSER);
    assert_eq!(over.map(|_| ()), Err(Errno::EEXIST));
    undelete(&mut fs, rows[0].id, (ROOT, "f.old"), SUPERUSER).expect("free");
    fs.run(&rename((ROOT, "f"), (ROOT, "f.old"), RenameMode::Exchange))
        .expect("both are there");
    assert_eq!(trash(&mut fs, HERE), vec![]);
}

#[test]
fn a_directory_is_remembered_and_removed_as_ever() {
    let mut fs = keeping();
    let dir = fs.make(ROOT, "d", NewNode::Directory, 0o2770).inode;
    let file = fs.file(dir, "f");
    fs.run(&unlink(dir, "f")).expect("there");
    fs.run(&rmdir(ROOT, "d")).expect("empty, whatever is kept");
    let rows = trash(&mut fs, HERE);
    let gone = rows.iter().find(|row| row.id.inode == dir).expect("noted");
    assert_eq!((gone.kind, gone.parent), (Kind::Directory, ROOT));
    assert_eq!((gone.uid, gone.gid, gone.mode), (7, 8, 0o2750));
    assert_eq!(orphans(&mut fs), vec![dir]);
    fs.run(&Op::Reap { inode: dir }).expect("reaped");
    let id = gone.id;
    let back = undelete(&mut fs, id, (ROOT, "d"), SUPERUSER);
    assert_eq!(back.map(|_| ()), Err(Errno::EISDIR));
    assert_eq!(trash(&mut fs, HERE).len(), 2, "known as long as the file");
    assert_eq!(purge(&mut fs, id, SUPERUSER), vec![]);
    let file = TrashId::new(at(1_000), file);
    undelete(&mut fs, file, (ROOT, "f"), SUPERUSER).expect("kept");
    assert_eq!(trash(&mut fs, HERE), vec![]);
}

#[test]
fn purging_makes_an_orphan_that_is_reaped() {
    let mut fs = keeping();
    let file = fs.file(ROOT, "f");
    fs.run(&unlink(ROOT, "f")).expect("there");
    let id = TrashId::new(at(1_000), file);
    assert_eq!(purge(&mut fs, id, OTHER), vec![], "it is not theirs");
    assert_eq!(purge(&mut fs, id, USER), vec![file]);
    assert_eq!(purge(&mut fs, id, USER), vec![], "it is not kept any more");
    assert_eq!(orphans(&mut fs), vec![file]);
    let back = undelete(&mut fs, id, (ROOT, "f"), SUPERUSER);
    assert_eq!(back.map(|_| ()), Err(Errno::ENOENT));
    fs.run(&Op::Reap { inode: file }).expect("reaped");
    assert_eq!(fs.run(&Op::GetAttr { inode: file }), Err(Errno::ESTALE));
}

#[test]
fn only_root_and_the_owner_bring_something_back_where_they_may_make_names() {
    let mut fs = keeping();
    let dir = fs.dir(ROOT, "d");
    let file = fs.file(dir, "f");
    fs.run(&unlink(dir, "f")).expect("there");
    let id = TrashId::new(at(1_000), file);
    let refused = |fs: &mut Fs, to, cred| undelete(fs, id, to, cred).map(|_| ());
    assert_eq!(refused(&mut fs, (dir, "f"), OTHER), Err(Errno::EPERM));
    // The root directory is root's, mode 0755.
    assert_eq!(refused(&mut fs, (ROOT, "f"), USER), Err(Errno::EACCES));
    let set = SetAttr {
        mode: Some(0o555),
        ..SetAttr::default()
    };
    fs.set(dir, set, USER).expect("set");
    assert_eq!(refused(&mut fs, (dir, "f"), USER), Err(Errno::EACCES));
    assert_eq!(refused(&mut fs, (dir, "f"), SUPERUSER), Ok(()));
}

#[test]
fn a_file_of_another_container_comes_back_from_there() {
    let mut fs = keeping();
    fs.home = Some(THERE);
    let away = fs.dir(ROOT, "away");
    let file = fs.file(away, "f");
    fs.rename((away, "f"), (ROOT, "f")).expect("moves");
    let outcome = fs.outcome(&unlink(ROOT, "f")).expect("there");
    assert_eq!(outcome.batches.len(), 2);
    assert_eq!(trash(&mut fs, HERE), vec![]);
    let rows = trash(&mut fs, THERE);
    assert_eq!((rows[0].id.inode, rows[0].parent), (file, ROOT));
    let back = undelete(&mut fs, rows[0].id, (ROOT, "f"), SUPERUSER).expect("kept");
    assert_eq!((back.inode, back.nlink), (file, 1));
    assert_eq!(trash(&mut fs, THERE), vec![]);
}

#[test]
fn what_was_removed_from_a_directory_that_has_gone_to_another_container_leads_to_its_name() {
    let mut fs = keeping();
    let dir = fs.dir(ROOT, "d");
    let file = fs.file(dir, "f");
    fs.run(&unlink(dir, "f")).expect("there");
    let rehome = Op::Rehome {
        parent: ROOT,
        name: b"d".to_vec(),
        container: THERE,
        policy: Vec::new(),
    };
    fs.run(&rehome).expect("empty");
    let rows = trash(&mut fs, HERE);
    let old = rows.iter().find(|row| row.id.inode == dir).expect("noted");
    assert_eq!(
        (old.kind, old.parent, &*old.name),
        (Kind::Directory, ROOT, &b"d"[..])
    );
    assert!(
        rows.iter()
            .any(|row| row.id.inode == file && row.parent == dir)
    );
}

#[test]
fn a_setting_is_the_nearest_directorys_as_far_as_a_container_knows() {
    let mut fs = Fs::new();
    let dir = fs.dir(ROOT, "d");
    let below = fs.dir(dir, "below");
    fs.home = Some(THERE);
    let away = fs.dir(below, "away");
    let set = |fs: &mut Fs, inode, value: &str| {
        let policy = vec![("trash".to_owned(), value.to_owned())];
        fs.run(&Op::SetPolicy { inode, policy }).expect("set");
    };
    let nearest = |fs: &mut Fs, container, dir| {
        nearest_setting(&mut fs.view, container, dir, "trash").expect("readable")
    };
    assert_eq!(nearest(&mut fs, HERE, below), Nearest::Unset);
    set(&mut fs, ROOT, "7d");
    assert_eq!(nearest(&mut fs, HERE, below), Nearest::Is("7d".into()));
    set(&mut fs, dir, "off");
    assert_eq!(nearest(&mut fs, HERE, below), Nearest::Is("off".into()));
    assert_eq!(nearest(&mut fs, THERE, away), Nearest::Above(below));
    assert_eq!(nearest(&mut fs, HERE, away), Nearest::Above(away));
    set(&mut fs, away, "1h");
    assert_eq!(nearest(&mut fs, THERE, away), Nearest::Is("1h".into()));
}
