//! What programs see: times, modes, names, links, ACLs, attributes.

mod fixture;

use fixture::{Fs, HERE, ROOT, THERE, USER, at, lock, make, rename, session, unlink};
use perigee_meta::xattr::{XATTR_CREATE, XATTR_REPLACE};
use perigee_meta::{
    Allocate, Credential, LockKind, NewNode, Op, Patience, RenameMode, Reply, SetAttr, SetTime,
    Setting, Touched, remove_with_name,
};
use perigee_types::limits::{FILE_LEN_MAX, LINK_MAX};
use perigee_types::{ByteRange, DataCommand, Errno, InodeId, InodeIndex};

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

/// An ACL as the kernel passes it: (tag, permissions, id).
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        out.extend(tag.to_le_bytes());
        out.extend(permissions.to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

/// owner `u`, user 10 rw-, group `g`, mask `m`, other `o`.
fn named(u: u16, g: u16, m: u16, o: u16) -> Vec<u8> {
    let none = u32::MAX;
    acl(&[
        (1, u, none),
        (2, 6, 10),
        (4, g, none),
        (16, m, none),
        (32, o, none),
    ])
}

fn name_errno(name: &[u8]) -> Errno {
    let op = Op::Make {
        parent: ROOT,
        name: name.to_vec(),
        node: NewNode::File,
        mode: 0o644,
        umask: 0,
        cred: USER,
        open_existing: false,
    };
    Fs::new().run(&op).expect_err("no such name")
}

#[test]
fn names_that_no_directory_can_hold_are_refused() {
    assert_eq!(name_errno(&[b'x'; 256]), Errno::ENAMETOOLONG);
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0"] {
        assert_eq!(name_errno(name), Errno::EINVAL);
    }
    assert!(matches!(
        Fs::new().run(&make(ROOT, &"x".repeat(255), NewNode::File, 0o644)),
        Ok(Reply::Created { .. })
    ));
}

#[test]
fn making_a_name_changes_the_times_of_its_directory_alone() {
    let mut fs = Fs::new();
    let dir = fs.dir(ROOT, "d");
    fs.clock = 50;
    let file = fs.file(dir, "f");
    let (d, f) = (fs.attr(dir), fs.attr(file));
    assert_eq!((d.atime, d.mtime, d.ctime), (at(1), at(50), at(50)));
    assert_eq!(
        (f.atime, f.mtime, f.ctime, f.btime),
        (at(50), at(50), at(50), at(50))
    );
    assert_eq!(fs.attr(ROOT).mtime, at(1));
}

#[test]
fn the_umask_limits_the_mode_and_a_setgid_directory_passes_its_group_on() {
    let mut fs = Fs::new();
    assert_eq!(fs.make(ROOT, "f", NewNode::File, 0o6777).mode, 0o6755);
    assert_eq!(
        fs.make(ROOT, "s", NewNode::Symlink(b"t".to_vec()), 0).mode,
        0o777
    );
    let dir = fs.dir(ROOT, "d");
    let set = SetAttr {
        mode: Some(0o2777),
        gid: Some(99),
        ..SetAttr::default()
    };
    fs.set(dir, set, Credential::default()).expect("set");
    let (file, below) = (fs.file(dir, "f"), fs.dir(dir, "below"));
    assert_eq!((fs.attr(file).gid, fs.attr(file).mode), (99, 0o644));
    assert_eq!((fs.attr(below).gid, fs.attr(below).mode), (99, 0o2755));
}

#[test]
fn all_orphans_are_found_a_few_at_a_time() {
    let mut fs = Fs::new();
    let mut all = Vec::new();
    for number in 0..7 {
        let name = number.to_string();
        all.push(fs.file(ROOT, &name));
        fs.run(&unlink(ROOT, &name)).expect("there");
    }
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let next = fs.run(&Op::Orphans {
            container: HERE,
            after,
            limit: 2,
        });
        let Ok(Reply::Inodes(inodes)) = next else {
            panic!("{next:?}");
        };
        assert!(inodes.len() <= 2);
        let Some(last) = inodes.last() else { break };
        after = Some(last.index());
        found.extend(inodes);
    }
    all.sort_unstable();
    assert_eq!(found, all);
    let none = fs.run(&Op::Orphans {
        container: HERE,
        after: Some(InodeIndex(u64::MAX)),
        limit: 2,
    });
    assert_eq!(none, Ok(Reply::Inodes(Vec::new())));
}

#[test]
fn an_unlinked_file_stays_until_it_is_reaped() {
    let mut fs = Fs::new();
    let file = fs.file(ROOT, "f");
    fs.setxattr(file, b"user.a", b"1", 0).expect("set");
    let outcome = fs.outcome(&unlink(ROOT, "f")).expect("there");
    assert!(matches!(outcome.reply, Reply::Removed { nlink: 0, .. }));
    assert!(outcome.batches[&HERE].data.is_empty(), "its data is kept");
    assert_eq!(fs.attr(file).nlink, 0);
    let link = Op::Link {
        inode: file,
        new_parent: ROOT,
        new_name: b"g".to_vec(),
        cred: USER,
    };
    assert_eq!(fs.run(&link), Err(Errno::ENOENT));
    let orphans = Op::Orphans {
        container: HERE,
        after: None,
        limit: 10,
    };
    assert_eq!(fs.run(&orphans), Ok(Reply::Inodes(vec![file])));
    let outcome = fs.outcome(&Op::Reap { inode: file }).expect("reaped");
    assert_eq!(
        outcome.batches[&HERE].data,
        vec![DataCommand::Removed { inode: file }]
    );
    assert_eq!(fs.run(&orphans), Ok(Reply::Inodes(vec![])));
    assert_eq!(fs.run(&Op::GetAttr { inode: file }), Err(Errno::ESTALE));
    let mark = file.index().0.to_be_bytes();
    let left = fs.view.states[&HERE]
        .keys()
        .filter(|key| key.get(1..9) == Some(&mark))
        .count();
    assert_eq!(left, 0, "no key of it is left");
}

#[test]
fn link_changes_ctime_and_refuses_directories_and_too_many_links() {
    let mut fs = Fs::new();
    let (file, dir) = (fs.file(ROOT, "f"), fs.dir(ROOT, "d"));
    fs.clock = 30;
    let link = |inode, name: &str| Op::Link {
        inode,
        new_parent: ROOT,
        new_name: name.into(),
        cred: USER,
    };
    fs.run(&link(file, "g")).expect("linked");
    let attr = fs.attr(file);
    assert_eq!((attr.nlink, attr.ctime, attr.mtime), (2, at(30), at(1)));
    assert_eq!(fs.run(&link(dir, "e")), Err(Errno::EPERM));
    assert_eq!(fs.run(&link(file, "d")), Err(Errno::EEXIST));
    for n in 2..LINK_MAX {
        fs.run(&link(file, &format!("l{n}")))
            .expect("below the limit");
    }
    assert_eq!(fs.run(&link(file, "one more")), Err(Errno::EMLINK));
}

#[test]
fn a_directory_counts_its_subdirectories_and_grows_with_its_entries() {
    let mut fs = Fs::new();
    let dir = fs.dir(ROOT, "d");
    assert_eq!((fs.attr(dir).nlink, fs.attr(dir).size), (2, 4096));
    for n in 0..100 {
        fs.dir(dir, &format!("{n}"));
    }
    let attr = fs.attr(dir);
    assert_eq!((attr.nlink, attr.size, attr.blocks), (102, 8192, 16));
}

#[test]
fn rename_over_a_file_orphans_it_and_changes_the_times() {
    let mut fs = Fs::new();
    let dir = fs.dir(ROOT, "d");
    let (old, new) = (fs.file(ROOT, "old"), fs.file(dir, "new"));
    fs.clock = 60;
    let moved = Reply::Renamed {
        moved: new,
        replaced: Some(old),
    };
    assert_eq!(fs.rename((dir, "new"), (ROOT, "old")), Ok(moved));
    assert_eq!((fs.attr(old).nlink, fs.attr(old).ctime), (0, at(60)));
    assert_eq!((fs.attr(new).ctime, fs.attr(new).mtime), (at(60), at(3)));
    assert_eq!((fs.attr(dir).mtime, fs.attr(ROOT).mtime), (at(60), at(60)));
}

#[test]
fn rename_of_two_names_of_one_inode_does_nothing() {
    let mut fs = Fs::new();
    let file = fs.file(ROOT, "a");
    let link = Op::Link {
        inode: file,
        new_parent: ROOT,
        new_name: b"b".to_vec(),
        cred: USER,
    };
    fs.run(&link).expect("linked");
    let outcome = fs
        .outcome(&rename((ROOT, "a"), (ROOT, "b"), RenameMode::Replace))
        .expect("no error");
    assert!(outcome.batches.is_empty());
    assert_eq!(fs.attr(file).nlink, 2);
}

#[test]
fn a_directory_cannot_move_below_itself_through_other_containers_either() {
    let mut fs = Fs::new();
    let top = fs.dir(ROOT, "top");
    fs.home = Some(THERE);
    let middle = fs.dir(top, "middle");
    fs.home = Some(HERE);
    let low = fs.dir(middle, "low");
    assert_ne!(middle.container(), low.container());
    assert_eq!(fs.rename((ROOT, "top"), (low, "x")), Err(Errno::EINVAL));
    let swap = rename((ROOT, "top"), (middle, "low"), RenameMode::Exchange);
    assert_eq!(fs.run(&swap), Err(Errno::EINVAL));
    assert!(fs.rename((middle, "low"), (ROOT, "low")).is_ok());
}

#[test]
fn exchange_of_directories_moves_links_and_parents() {
    let mut fs = Fs::new();
    let (a, b) = (fs.dir(ROOT, "a"), fs.dir(ROOT, "b"));
    let (sub, file) = (fs.dir(a, "x"), fs.file(b, "y"));
    fs.run(&rename((a, "x"), (b, "y"), RenameMode::Exchange))
        .expect("both there");
    assert_eq!((fs.attr(a).nlink, fs.attr(b).nlink), (2, 3));
    let up = Op::Lookup {
        parent: sub,
        name: b"..".to_vec(),
    };
    assert!(matches!(fs.run(&up), Ok(Reply::Entry(attr)) if attr.inode == b));
    let down = Op::Lookup {
        parent: a,
        name: b"x".to_vec(),
    };
    assert!(matches!(fs.run(&down), Ok(Reply::Entry(attr)) if attr.inode == file));
}

#[test]
fn rename_refuses_what_the_targets_kind_forbids() {
    let mut fs = Fs::new();
    let (dir, full) = (fs.dir(ROOT, "dir"), fs.dir(ROOT, "full"));
    fs.file(ROOT, "file");
    fs.file(full, "x");
    assert_eq!(
        fs.rename((ROOT, "dir"), (ROOT, "file")),
        Err(Errno::ENOTDIR)
    );
    assert_eq!(fs.rename((ROOT, "file"), (ROOT, "dir")), Err(Errno::EISDIR));
    assert_eq!(
        fs.rename((ROOT, "dir"), (ROOT, "full")),
        Err(Errno::ENOTEMPTY)
    );
    assert_eq!(fs.rename((ROOT, "none"), (ROOT, "dir")), Err(Errno::ENOENT));
    let gentle = rename((ROOT, "file"), (ROOT, "dir"), RenameMode::NoReplace);
    assert_eq!(fs.run(&gentle), Err(Errno::EEXIST));
    assert!(fs.rename((ROOT, "full"), (ROOT, "dir")).is_ok());
    assert_eq!(fs.attr(dir).nlink, 0);
    assert_eq!(
        fs.run(&make(dir, "f", NewNode::File, 0o644)),
        Err(Errno::ENOENT)
    );
}

#[test]
fn chown_clears_set_id_bits_of_programs_only() {
    let mut fs = Fs::new();
    let mut after = |mode: u32, cred: Credential, kill: bool, dir: bool| {
        let node = if dir {
            NewNode::Directory
        } else {
            NewNode::File
        };
        let name = format!("{}", fs.clock);
        let inode = fs.make(ROOT, &name, node, 0).inode;
        let chmod = SetAttr {
            mode: Some(mode),
            ..SetAttr::default()
        };
        fs.set(inode, chmod, cred).expect("set");
        let chown = SetAttr {
            gid: Some(8),
            kill_privileges: kill,
            ..SetAttr::default()
        };
        fs.set(inode, chown, cred).expect("set").mode
    };
    let root = Credential::default();
    assert_eq!(after(0o6755, USER, false, false), 0o755);
    assert_eq!(
        after(0o6745, USER, false, false),
        0o2745,
        "mandatory locking, no privilege"
    );
    assert_eq!(after(0o6755, root, false, false), 0o6755);
    assert_eq!(after(0o6755, root, true, false), 0o755);
    assert_eq!(
        after(0o6755, USER, true, true),
        0o6755,
        "inheritance, no privilege"
    );
}

#[test]
fn truncation_changes_times_even_to_the_same_size() {
    let mut fs = Fs::new();
    let file = fs.file(ROOT, "f");
    let size = |size| SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.clock = 20;
    let attr = fs.set(file, size(0), USER).expect("set");
    assert_eq!(
        (attr.mtime, attr.ctime, attr.atime),
        (at(20), at(20), at(1))
    );
    assert_eq!(
        fs.set(file, size(FILE_LEN_MAX), USER).expect("fits").blocks,
        FILE_LEN_MAX / 512
    );
    assert_eq!(
        fs.set(file, size(FILE_LEN_MAX + 1), USER),
        Err(Errno::EFBIG)
    );
    let times = SetAttr {
        atime: Some(SetTime::At(at(3))),
        mtime: Some(SetTime::Now),
        ..SetAttr::default()
    };
    fs.clock = 40;
    let attr = fs.set(file, times, USER).expect("set");
    assert_eq!(
        (attr.atime, attr.mtime, attr.ctime),
        (at(3), at(40), at(40))
    );
}

#[test]
fn a_written_record_grows_the_file_and_clears_privileges() {
    let mut fs = Fs::new();
    let file = fs.file(ROOT, "f");
    let mode = SetAttr {
        mode: Some(0o6755),
        ..SetAttr::default()
    };
    fs.set(file, mode, Credential::default()).expect("set");
    fs.setxattr(file, b"security.capability", b"caps", 0)
        .expect("set");
    let ranges = vec![ByteRange::new(10, 20), ByteRange::new(90, 100)];
    let outcome = fs
        .outcome(&Op::Wrote {
            inode: file,
            ranges: ranges.clone(),
            size_at_least: Some(50),
            mtime: at(70),
            kill_privileges: true,
        })
        .expect("written");
    let commands = ranges
        .into_iter()
        .map(|range| DataCommand::Written { inode: file, range });
    assert_eq!(outcome.batches[&HERE].data, commands.collect::<Vec<_>>());
    assert_eq!(
        outcome.touched,
        vec![Touched::Attr(file), Touched::Data(file)]
    );
    let attr = fs.attr(file);
    assert_eq!(
        (attr.size, attr.mode, attr.mtime, attr.ctime),
        (100, 0o755, at(70), at(70))
    );
    assert_eq!(
        fs.getxattr(file, b"security.capability"),
        Err(Errno::ENODATA)
    );
}

#[test]
fn allocation_grows_or_punches_as_asked() {
    let mut fs = Fs::new();
    let inode = fs.file(ROOT, "f");
    let mut after = |how, start, end| {
        let range = ByteRange::new(start, end);
        let outcome = fs
            .outcome(&Op::Allocate { inode, range, how })
            .expect("allocated");
        (fs.attr(inode).size, outcome.batches[&HERE].data.clone())
    };
    let resized = |size| DataCommand::Resized { inode, size };
    let punched = |start, end| DataCommand::Punched {
        inode,
        range: ByteRange::new(start, end),
    };
    assert_eq!(after(Allocate::KeepSize, 0, 100), (0, vec![]));
    assert_eq!(after(Allocate::Extend, 0, 100), (100, vec![resized(100)]));
    assert_eq!(
        after(Allocate::PunchHole, 50, 200),
        (100, vec![punched(50, 100)])
    );
    assert_eq!(
        after(Allocate::ZeroRange, 90, 120),
        (120, vec![resized(120), punched(90, 100)])
    );
    assert_eq!(after(Allocate::ZeroRangeKeepSize, 200, 300), (120, vec![]));
    let beyond = Op::Allocate {
        inode,
        range: ByteRange::new(0, FILE_LEN_MAX + 1),
        how: Allocate::Extend,
    };
    assert_eq!(fs.run(&beyond), Err(Errno::EFBIG));
}

#[test]
fn extended_attributes_follow_their_flags_and_name_spaces() {
    let mut fs = Fs::new();
    let file = fs.file(ROOT, "f");
    let link = fs.make(ROOT, "s", NewNode::Symlink(b"t".to_vec()), 0).inode;
    assert_eq!(
        fs.setxattr(file, b"user.a", b"1", XATTR_REPLACE),
        Err(Errno::ENODATA)
    );
    fs.setxattr(file, b"user.a", b"1", XATTR_CREATE)
        .expect("new");
    assert_eq!(
        fs.setxattr(file, b"user.a", b"2", XATTR_CREATE),
        Err(Errno::EEXIST)
    );
    fs.setxattr(file, b"user.a", b"", XATTR_REPLACE)
        .expect("there");
    assert_eq!(fs.getxattr(file, b"user.a"), Ok(vec![]));
    fs.setxattr(file, b"trusted.b", b"x", 0).expect("new");
    let names = Reply::Names(vec![b"trusted.b".to_vec(), b"user.a".to_vec()]);
    assert_eq!(fs.run(&Op::ListXattr { inode: file }), Ok(names));
    assert_eq!(fs.setxattr(link, b"user.a", b"1", 0), Err(Errno::EPERM));
    assert_eq!(fs.setxattr(link, b"security.a", b"1", 0), Ok(()));
    assert_eq!(fs.getxattr(link, b"user.a"), Err(Errno::ENODATA));
    assert_eq!(
        fs.setxattr(file, b"system.other", b"1", 0),
        Err(Errno::EOPNOTSUPP)
    );
    assert_eq!(fs.setxattr(file, b"user.", b"1", 0), Err(Errno::EINVAL));
    // Labels are a host's own: programs that see this answer once do not ask for those of other files.
    assert_eq!(
        fs.setxattr(file, b"security.selinux", b"label", 0),
        Err(Errno::EOPNOTSUPP)
    );
    assert_eq!(
        fs.getxattr(file, b"security.selinux"),
        Err(Errno::EOPNOTSUPP)
    );
    let remove = Op::RemoveXattr {
        inode: file,
        name: b"user.a".to_vec(),
        cred: USER,
    };
    assert_eq!(fs.run(&remove), Ok(Reply::Done));
    assert_eq!(fs.run(&remove), Err(Errno::ENODATA));
}

#[test]
fn the_extended_attributes_of_one_inode_are_bounded() {
    let mut fs = Fs::new();
    let file = fs.file(ROOT, "f");
    let set =
        |fs: &mut Fs, n: u32| fs.setxattr(file, format!("user.{n}").as_bytes(), &[7; 65536], 0);
    let fitting = (0..100).take_while(|n| set(&mut fs, *n).is_ok()).count();
    assert_eq!(fitting, 15);
    assert_eq!(set(&mut fs, 99), Err(Errno::ENOSPC));
    assert_eq!(set(&mut fs, 3), Ok(()), "a replacement takes no more");
}

#[test]
fn an_access_acl_and_the_mode_follow_each_other() {
    let mut fs = Fs::new();
    let file = fs.file(ROOT, "f");
    fs.setxattr(file, ACCESS, &named(7, 5, 6, 4), 0)
        .expect("valid");
    assert_eq!(fs.attr(file).mode, 0o764);
    let mode = SetAttr {
        mode: Some(0o640),
        ..SetAttr::default()
    };
    fs.set(file, mode, USER).expect("set");
    assert_eq!(fs.getxattr(file, ACCESS), Ok(named(6, 5, 4, 0)));
    let none = u32::MAX;
    fs.setxattr(
        file,
        ACCESS,
        &acl(&[(1, 6, none), (4, 4, none), (32, 4, none)]),
        0,
    )
    .expect("valid");
    assert_eq!(fs.attr(file).mode, 0o644);
    assert_eq!(
        fs.getxattr(file, ACCESS),
        Err(Errno::ENODATA),
        "the mode says it all"
    );
    assert_eq!(
        fs.setxattr(file, ACCESS, b"nonsense", 0),
        Err(Errno::EINVAL)
    );
    assert_eq!(
        fs.setxattr(file, DEFAULT, &named(7, 7, 7, 7), 0),
        Err(Errno::EACCES)
    );
}

#[test]
fn new_entries_inherit_the_default_acl_instead_of_the_umask() {
    let mut fs = Fs::new();
    let dir = fs.dir(ROOT, "d");
    fs.setxattr(dir, DEFAULT, &named(7, 7, 7, 5), 0)
        .expect("valid");
    assert_eq!(
        fs.attr(dir).mode,
        0o755,
        "the directory itself is as before"
    );
    let file = fs.make(dir, "f", NewNode::File, 0o666);
    assert_eq!(file.mode, 0o664, "the umask of 022 has no say");
    assert_eq!(fs.getxattr(file.inode, ACCESS), Ok(named(6, 7, 6, 4)));
    assert_eq!(fs.getxattr(file.inode, DEFAULT), Err(Errno::ENODATA));
    fs.home = Some(THERE);
    let below = fs.dir(dir, "below");
    assert_eq!(fs.getxattr(below, DEFAULT), Ok(named(7, 7, 7, 5)));
    let link = fs.make(dir, "s", NewNode::Symlink(b"t".to_vec()), 0);
    assert_eq!(link.mode, 0o777);
    let none = u32::MAX;
    fs.setxattr(
        dir,
        DEFAULT,
        &acl(&[(1, 7, none), (4, 5, none), (32, 0, none)]),
        0,
    )
    .expect("valid");
    let plain = fs.make(dir, "g", NewNode::File, 0o666);
    assert_eq!(plain.mode, 0o640);
    assert_eq!(fs.getxattr(plain.inode, ACCESS), Err(Errno::ENODATA));
}

#[test]
fn create_without_excl_opens_what_is_there() {
    let mut fs = Fs::new();
    let file = fs.file(ROOT, "f");
    fs.dir(ROOT, "d");
    fs.make(ROOT, "s", NewNode::Symlink(b"f".to_vec()), 0);
    let mut open = |name: &str| {
        let mut op = make(ROOT, name, NewNode::File, 0o644);
        if let Op::Make { open_existing, .. } = &mut op {
            *open_existing = true;
        }
        fs.run(&op)
    };
    assert!(matches!(open("f"), Ok(Reply::Created { attr, existed: true }) if attr.inode == file));
    assert_eq!(open("d"), Err(Errno::EISDIR));
    assert_eq!(open("s"), Err(Errno::ESTALE), "look again, and follow it");
}

#[test]
fn a_policy_holds_for_the_tree_below() {
    let mut fs = Fs::new();
    let a = fs.dir(ROOT, "a");
    fs.home = Some(THERE);
    let b = fs.dir(a, "b");
    let file = fs.file(b, "f");
    let get = |fs: &mut Fs, inode| fs.run(&Op::GetPolicy { inode });
    let set = |fs: &mut Fs, inode: InodeId, pairs: &[(&str, &str)]| {
        let pairs = pairs.iter();
        let policy = pairs
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect();
        fs.run(&Op::SetPolicy { inode, policy }).expect("set");
    };
    let setting = |name: &str, value: &str, from| Setting {
        name: name.to_string(),
        value: value.to_string(),
        from,
    };
    let none = Reply::Policy(Vec::new());
    assert_eq!(get(&mut fs, b), Ok(none.clone()));
    set(&mut fs, a, &[("copies", "3"), ("migration", "off")]);
    let all = vec![setting("copies", "3", a), setting("migration", "off", a)];
    assert_eq!(get(&mut fs, b), Ok(Reply::Policy(all)));
    set(&mut fs, b, &[("migration", "always")]);
    let nearest = Reply::Policy(vec![
        setting("migration", "always", b),
        setting("copies", "3", a),
    ]);
    assert_eq!(get(&mut fs, b), Ok(nearest.clone()));
    assert_eq!(get(&mut fs, file), Ok(nearest));
    set(&mut fs, a, &[]);
    set(&mut fs, b, &[]);
    assert_eq!(get(&mut fs, b), Ok(none));
}

#[test]
fn a_file_has_the_policies_of_the_directory_where_it_got_its_last_name() {
    let mut fs = Fs::new();
    let (a, b) = (fs.dir(ROOT, "a"), fs.dir(ROOT, "b"));
    let set = |inode: InodeId, value: &str| Op::SetPolicy {
        inode,
        policy: vec![("migration".to_string(), value.to_string())],
    };
    fs.run(&set(a, "off")).expect("set");
    fs.run(&set(b, "always")).expect("set");
    let (file, linked) = (fs.file(a, "f"), fs.file(a, "l"));
    let from = |fs: &mut Fs, inode| match fs.run(&Op::GetPolicy { inode }) {
        Ok(Reply::Policy(settings)) => settings[0].from,
        other => panic!("{other:?}"),
    };
    assert_eq!(from(&mut fs, file), a);
    fs.run(&rename((a, "f"), (b, "f"), RenameMode::Replace))
        .expect("moved");
    assert_eq!(from(&mut fs, file), b);
    fs.run(&Op::Link {
        inode: linked,
        new_parent: b,
        new_name: b"l".to_vec(),
        cred: Credential::default(),
    })
    .expect("linked");
    assert_eq!(from(&mut fs, linked), b);
}

/// Makes what the name `n` of the root is of.
fn one_of(fs: &mut Fs, what: &str) -> InodeId {
    let node = match what {
        "symlink" => NewNode::Symlink(b"there".to_vec()),
        "fifo" => NewNode::Fifo,
        _ => NewNode::File,
    };
    let inode = fs.make(ROOT, "n", node, 0o644).inode;
    match what {
        "attributes" => fs.setxattr(inode, b"user.a", b"1", 0).expect("set"),
        "another name" => {
            let link = Op::Link {
                inode,
                new_parent: ROOT,
                new_name: b"other".to_vec(),
                cred: USER,
            };
            fs.run(&link).expect("linked");
        }
        "locks" => {
            let lock = Op::SetLock {
                inode,
                session: session(1),
                lock: lock(LockKind::Posix, 1, 0, 9, Some(true)),
                patience: Patience::Refuse,
            };
            fs.run(&lock).expect("locked");
        }
        "kept" => fs.keep_until = Some(at(1_000)),
        _ => {}
    }
    inode
}

#[test]
fn what_goes_with_its_name_leaves_what_the_reaper_leaves() {
    let all = [
        ("file", true),
        ("symlink", true),
        ("fifo", true),
        ("locks", true),
        ("attributes", false),
        ("another name", false),
        ("kept", false),
    ];
    for (what, goes) in all {
        let mut fs = Fs::new();
        let inode = one_of(&mut fs, what);
        let mut by_reaper = fs.clone();
        let unlinked = by_reaper.outcome(&unlink(ROOT, "n")).expect("there");
        let mut batch = unlinked.batches[&HERE].clone();
        let before = batch.clone();
        let went = remove_with_name(&mut batch, inode, what == "locks").expect("sound");
        assert_eq!(went, goes, "{what}");
        if !went {
            assert_eq!(batch, before, "{what}");
            continue;
        }
        let reaped = by_reaper.outcome(&Op::Reap { inode }).expect("reaped");
        fs.view.apply(HERE, &batch);
        assert_eq!(fs.view.states, by_reaper.view.states, "{what}");
        assert_eq!(batch.data, reaped.batches[&HERE].data, "{what}");
    }
}
