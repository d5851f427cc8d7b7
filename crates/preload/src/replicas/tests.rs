use super::*;

fn candidates(text: &str) -> Vec<Mapped> {
    let mut smaps = Smaps::default();
    text.lines()
        .filter_map(|line| smaps.line(line.as_bytes()))
        .collect()
}

#[test]
fn only_unwritten_mappings_are_replaced_by_copies() {
    let text = "\
55d0c0000000-55d0c0001000 r--p 00002000 fe:01 123   /usr/bin/a b
Size:                  4 kB
Anonymous:             0 kB
Swap:                  0 kB
55d0c0001000-55d0c0002000 r-xp 00003000 fe:01 123   /usr/bin/a b
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd ex mr mw me
55d0c0002000-55d0c0003000 r--p 00004000 fe:01 123   /usr/bin/a b
Anonymous:             4 kB
Swap:                  0 kB
55d0c0003000-55d0c0004000 r--p 00005000 fe:01 123   /usr/bin/a b
Anonymous:             0 kB
Swap:                  4 kB
55d0c0004000-55d0c0005000 rw-p 00005000 fe:01 123   /usr/bin/a b
Anonymous:             0 kB
Swap:                  0 kB
7f0000000000-7f0000001000 r--s 00000000 fe:01 124   /data
Anonymous:             0 kB
Swap:                  0 kB
7f0000001000-7f0000002000 r--p 00000000 00:00 0
Anonymous:             0 kB
Swap:                  0 kB
7f0000002000-7f0000003000 ---p 00000000 fe:01 123   /usr/bin/a b
Anonymous:             0 kB
Swap:                  0 kB
";
    let text_at = |start: usize, protection, offset| Mapped {
        start,
        end: start + 0x1000,
        protection,
        flags: sys::MAP_PRIVATE,
        offset,
        file: [device(0xfe, 1), 123],
    };
    let data = Mapped {
        flags: sys::MAP_SHARED,
        file: [device(0xfe, 1), 124],
        ..text_at(0x7f00_0000_0000, sys::PROT_READ, 0)
    };
    assert_eq!(
        candidates(text),
        [
            text_at(0x55d0_c000_0000, sys::PROT_READ, 0x2000),
            text_at(0x55d0_c000_1000, sys::PROT_READ | sys::PROT_EXEC, 0x3000),
            data,
        ]
    );
}

/// Mappings of this process.
fn mappings() -> Vec<Mapped> {
    let fd = sys::open(b"/proc/self/smaps\0", sys::O_RDONLY).unwrap();
    let (mut smaps, mut found) = (Smaps::default(), Vec::new());
    each_line(fd, &mut [0; 8192], |line| found.extend(smaps.line(line)));
    sys::close(fd);
    found
}

/// A file of one page, mapped; where, and how the kernel lists it.
fn mapped(file: &std::fs::File, flags: usize) -> (usize, [u64; 2]) {
    use std::os::fd::AsRawFd;
    let fd = Some(file.as_raw_fd() as usize);
    let start = sys::mmap(4096, sys::PROT_READ, flags, fd, 0).unwrap();
    (start, listed(start).file)
}

fn listed(start: usize) -> Mapped {
    let all = mappings();
    *all.iter().find(|one| one.start == start).expect("mapped")
}

#[test]
fn copies_of_another_node_are_exchanged_and_written_pages_stay() {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    let [original, far, near] = [0u8, 1, 2].map(|content| {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[content; 4096]).unwrap();
        file
    });
    let [private, shared] = [sys::MAP_PRIVATE, sys::MAP_SHARED].map(|flags| mapped(&far, flags));
    let (of_original, identity) = mapped(&original, sys::MAP_PRIVATE);
    let (shared_original, _) = mapped(&original, sys::MAP_SHARED);
    let (written, _) = mapped(&far, sys::MAP_PRIVATE);
    unsafe extern "C" {
        fn mprotect(start: usize, length: usize, protection: c_int) -> c_int;
    }
    let writable = sys::PROT_READ | sys::PROT_WRITE;
    // SAFETY: a page of this test alone.
    unsafe {
        assert_eq!(mprotect(written, 4096, writable as c_int), 0);
        *(written as *mut u8) = 9;
        assert_eq!(mprotect(written, 4096, sys::PROT_READ as c_int), 0);
    }
    let (_, near_identity) = mapped(&near, sys::MAP_PRIVATE);
    let entry = |node, file: &std::fs::File, copy| Entry {
        mapped: identity,
        node,
        fd: file.as_raw_fd() as u32,
        copy,
        ..Entry::default()
    };
    let mut table = Vec::from(nearpage_wire::replicas::header(std::process::id(), 2));
    table.extend(entry(1, &far, private.1).to_bytes());
    table.extend(entry(2, &near, near_identity).to_bytes());
    assert_eq!(from_copies(&table, 2), [3, 3 * 4096]);
    // SAFETY: mapped above.
    let first = |start: usize| unsafe { *(start as *const u8) };
    let contents = [private.0, shared.0, of_original, shared_original, written].map(first);
    assert_eq!(contents, [2, 2, 2, 0, 9]);
    let flags = [private.0, shared.0].map(|start| listed(start).flags);
    assert_eq!(flags, [sys::MAP_PRIVATE, sys::MAP_SHARED]);
    assert_eq!(NODE.load(Relaxed), 2);
    assert_eq!(from_copies(&table, 2), [0, 0]);
    assert_eq!(from_copies(&table, 3), [0, 0], "a node without copies");
    assert_eq!(from_copies(&table, 1), [4, 4 * 4096]);
}

#[test]
fn a_process_s_own_text_is_found_line_by_line() {
    let found = mappings();
    let here = candidates as *const () as usize;
    let text = found
        .iter()
        .find(|one| (one.start..one.end).contains(&here));
    assert_eq!(
        text.expect("this code").protection,
        sys::PROT_READ | sys::PROT_EXEC
    );
}

#[test]
fn a_process_is_counted_once_and_its_child_by_itself() {
    let counted = [7, 7, 8, 8].map(is_first_of);
    assert_eq!(counted, [true, false, true, false]);
}

#[test]
fn without_a_table_every_file_is_itself() {
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    use std::os::fd::AsRawFd;
    assert!(instead_of(file.as_raw_fd(), sys::MAP_PRIVATE as u32).is_none());
    let status = sys::file_status(file.as_raw_fd() as usize).unwrap();
    let metadata = file.metadata().unwrap();
    use std::os::unix::fs::MetadataExt;
    assert_eq!(status.identity, [metadata.dev(), metadata.ino()]);
    assert_eq!(status.size, metadata.len());
    assert_eq!(
        status.changed,
        [metadata.mtime() as u64, metadata.mtime_nsec() as u64]
    );
    assert!(sys::is_read_only(file.as_raw_fd() as usize));
}
