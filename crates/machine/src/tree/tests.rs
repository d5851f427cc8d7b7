use std::io::Write;
use std::os::unix::fs::symlink;

use super::*;

/// Entry of an archive: a file with its text, or a link.
pub(crate) enum Made<'a> {
    File(&'a str),
    Link(&'a str),
}
use Made::{File, Link};

pub(crate) fn archive(entries: &[(&str, Made)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, made) in entries {
        let mut header = tar::Header::new_gnu();
        // The name is written directly, because `set_path` refuses some names.
        header.as_gnu_mut().expect("gnu").name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_mode(0o644);
        let text = match made {
            File(text) => text,
            Link(target) => {
                header.set_entry_type(tar::EntryType::Symlink);
                header.set_link_name_literal(target).expect("short");
                ""
            }
        };
        header.set_size(text.len() as u64);
        header.set_cksum();
        builder.append(&header, text.as_bytes()).expect("memory");
    }
    builder.into_inner().expect("memory")
}

fn tree(entries: &[(&str, Made)]) -> Result<Tree, Error> {
    Tree::archived(&archive(entries), Path::new("x.tar"))
}

fn problem(entries: &[(&str, Made)]) -> String {
    tree(entries).err().expect("refused").to_string()
}

const ONLINE: (&str, Made) = ("m/sys/devices/system/cpu/online", File("0-1\n\0\0\0"));

#[test]
fn archives_are_recognised_by_their_first_bytes() {
    let bare = archive(&[ONLINE]);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&bare).expect("memory");
    let mut bzip2 = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    bzip2.write_all(&bare).expect("memory");
    let zstd = ruzstd::encoding::compress_to_vec(
        bare.as_slice(),
        ruzstd::encoding::CompressionLevel::Fastest,
    );
    for packed in [
        bare,
        gzip.finish().expect("memory"),
        bzip2.finish().expect("memory"),
        zstd,
    ] {
        let tree = Tree::archived(&packed, Path::new("x")).expect("reads");
        // NULs of a padded file are not part of the text.
        assert_eq!(
            tree.read("sys/devices/system/cpu/online")
                .expect("reads")
                .as_deref(),
            Some("0-1")
        );
        let cut = &packed[..packed.len() / 3];
        let error = Tree::archived(cut, Path::new("x"))
            .err()
            .expect("cut short")
            .to_string();
        assert!(!error.contains('\n'), "{error}");
    }
    let error = Tree::archived(b"no archive", Path::new("x"))
        .err()
        .expect("text")
        .to_string();
    assert!(
        error.starts_with("x: neither a folder nor an archive"),
        "{error}"
    );
}

#[test]
fn the_top_of_the_tree_is_found() {
    for (path, is_sys) in [
        ("sys/devices/system/cpu/online", false),
        ("./sys/devices/system/cpu/online", false),
        ("devices/system/cpu/online", true),
        ("some name/sys/devices/system/cpu/online", false),
    ] {
        let tree = tree(&[(path, File("0"))]).expect(path);
        assert_eq!(tree.is_sys, is_sys);
        assert!(tree.exists("sys/devices/system/cpu/online"), "{path}");
    }
    assert!(problem(&[("a/b/sys/devices/system/x", File(""))]).contains("hwloc-gather-topology"));
    let two = [
        ("a/sys/devices/system/x", File("")),
        ("b/sys/devices/system/x", File("")),
    ];
    assert!(problem(&two).contains("2 machines"));
}

#[test]
fn links_stay_inside() {
    let tree = tree(&[
        ONLINE,
        ("m/sys/up", Link("../../../../etc/hostname")),
        ("m/sys/absolute", Link("/sys/devices/system/cpu/online")),
        ("m/sys/outside", Link("/etc/hostname")),
        ("m/sys/round", Link("round")),
        ("m/sys/folder", Link("devices/system")),
        ("m/sys/relative", Link("folder/cpu/../cpu/online")),
    ])
    .expect("reads");
    for path in ["sys/absolute", "sys/relative", "sys/folder/cpu/online"] {
        assert_eq!(
            tree.read(path).expect("reads").as_deref(),
            Some("0-1"),
            "{path}"
        );
    }
    for path in [
        "sys/up",
        "sys/outside",
        "sys/round",
        "sys/folder",
        "../../etc/hostname",
    ] {
        assert_eq!(tree.read(path).expect("reads"), None, "{path}");
    }
}

#[test]
fn links_of_a_folder_stay_inside() {
    let folder = tempfile::tempdir().expect("folder");
    let secret = tempfile::NamedTempFile::new().expect("file");
    std::fs::write(secret.path(), "0-7").expect("writes");
    let cpu = folder.path().join("sys/devices/system/cpu");
    std::fs::create_dir_all(&cpu).expect("folder");
    symlink(secret.path(), cpu.join("online")).expect("link");
    std::fs::write(cpu.join("possible"), "0-3").expect("writes");
    symlink("/sys/devices/system/cpu/possible", cpu.join("present")).expect("link");
    let tree = Tree::gathered(folder.path()).expect("reads");
    assert_eq!(
        tree.read("sys/devices/system/cpu/online").expect("reads"),
        None
    );
    assert_eq!(
        tree.read("sys/devices/system/cpu/present")
            .expect("reads")
            .as_deref(),
        Some("0-3")
    );
}

#[test]
fn paths_out_of_an_archive_are_refused() {
    for path in ["../sys/devices/system/x", "m/../../x", "/etc/passwd"] {
        let error = problem(&[ONLINE, (path, File(""))]);
        assert!(error.contains("leads out of it"), "{path}: {error}");
    }
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(0);
    builder
        .append_data(&mut header, "d/".repeat(70) + "file", std::io::empty())
        .expect("memory");
    let deep = builder.into_inner().expect("memory");
    let error = Tree::archived(&deep, Path::new("deep.tar"))
        .err()
        .expect("refused")
        .to_string();
    assert!(error.contains("more than 64 folders deep"), "{error}");
    let mixed = [
        ("m/sys/devices/system/cpu", File("")),
        ("m/sys/devices/system/cpu/online", File("0")),
    ];
    assert!(problem(&mixed).contains("a folder and something else"));
}

#[test]
fn a_small_archive_cannot_fill_the_memory() {
    // A GiB of zeros, in a file that is not read.
    let mut header = tar::Header::new_gnu();
    header.set_path("m/zeros").expect("short");
    header.set_size(1 << 30);
    header.set_cksum();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(header.as_bytes()).expect("memory");
    let zeros = vec![0; 1 << 20];
    for _ in 0..1024 {
        gzip.write_all(&zeros).expect("memory");
    }
    let packed = gzip.finish().expect("memory");
    assert!(packed.len() < 8 << 20);
    let error = Tree::archived(&packed, Path::new("bomb"))
        .err()
        .expect("refused")
        .to_string();
    assert!(
        error.contains("`m/zeros` in it has more than 8 MiB"),
        "{error}"
    );
}

#[test]
fn sets_are_read_from_the_right() {
    let members = |text| members_of_map::<crate::CpuId>(text).map(|list| list.to_string());
    assert_eq!(members("ff").as_deref(), Some("0-7"));
    assert_eq!(members("00000001,0000000f").as_deref(), Some("0-3,32"));
    assert_eq!(members("0,80000000,0").as_deref(), Some("63"));
    assert_eq!(members("no set"), None);
    let beyond = format!("1{}", ",0".repeat(2048));
    assert_eq!(members(&beyond), None);
}
