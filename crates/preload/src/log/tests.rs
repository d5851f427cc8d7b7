use super::*;
use nearpage_wire::allocation_log::{Kind, Records, head};
use std::os::unix::ffi::OsStrExt;

fn folder(name: &str) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("nearpage-log-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir(&folder).unwrap();
    folder
}

fn write(log: &Log, thread: &mut Thread, words: &[u64]) -> bool {
    if log.needs_block(thread, words.len()) && !log.claim(thread, false) {
        return false;
    }
    log.append(thread, words);
    true
}

#[test]
fn blocks_fill_close_and_are_handed_on() {
    let folder = folder("fill");
    let log = Log::new();
    assert!(log.open(
        folder.as_os_str().as_bytes(),
        std::process::id(),
        5,
        1 << 30
    ));
    let mut thread = Thread {
        tid: 11,
        ..Thread::default()
    };
    for number in 0..10_000u64 {
        assert!(write(
            &log,
            &mut thread,
            &[head(Kind::Free, 3, 0, 0), number, number * 16]
        ));
    }
    log.release(&mut thread);
    let mut next = Thread {
        tid: 12,
        ..Thread::default()
    };
    assert!(log.claim(&mut next, true));
    log.append(&mut next, &[head(Kind::ThreadExit, 2, 0, 12), 9]);

    let (mut frees, mut exits, mut closed) = (0u64, 0, 0);
    for sequence in 0.. {
        let path = folder.join(format!("alloc-{}-5-{sequence}.log", std::process::id()));
        let Ok(bytes) = std::fs::read(path) else {
            break;
        };
        assert_eq!(bytes[..8], SEGMENT_MAGIC);
        assert_eq!(
            bytes.len(),
            SEGMENT_HEADER_BYTES + (FIRST_SEGMENT_BLOCKS << sequence) * BLOCK_BYTES
        );
        for block in bytes[SEGMENT_HEADER_BYTES..]
            .chunks(BLOCK_BYTES)
            .filter(|block| block[..4] == BLOCK_MAGIC)
        {
            let word = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().unwrap());
            let committed = &block[BLOCK_HEADER_BYTES..BLOCK_HEADER_BYTES + word(8) as usize];
            if word(12) != 0 {
                assert_eq!(word(12), crc32(committed));
                closed += 1;
            }
            for record in Records::new(committed) {
                match record.kind {
                    Kind::Free => {
                        assert_eq!(record.word(0), frees);
                        frees += 1;
                    }
                    _ => exits += 1,
                }
            }
        }
    }
    assert_eq!((frees, exits), (10_000, 1));
    assert_eq!(closed + 1, log.blocks_claimed.load(Ordering::Relaxed));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_bound_and_a_missing_folder_switch_the_log_off() {
    let folder = folder("bound");
    let log = Log::new();
    assert!(log.open(folder.as_os_str().as_bytes(), std::process::id(), 5, 80_000));
    let mut thread = Thread::default();
    let written = (0..10_000)
        .filter(|_| write(&log, &mut thread, &[head(Kind::Free, 3, 0, 0), 1, 2]))
        .count();
    assert_eq!(written, 4 * ((BLOCK_BYTES - BLOCK_HEADER_BYTES) / 24));
    assert!(!log.is_on());
    std::fs::remove_dir_all(&folder).unwrap();
    let log = Log::new();
    assert!(!log.open(b"relative", 1, 5, 1 << 20));
    assert!(log.open(
        folder.as_os_str().as_bytes(),
        std::process::id(),
        5,
        1 << 20
    ));
    assert!(
        !write(
            &log,
            &mut Thread::default(),
            &[head(Kind::Free, 3, 0, 0), 1, 2]
        ) && !log.is_on()
    );
}

#[test]
fn a_thread_that_waits_while_the_log_goes_off_makes_no_segment() {
    let folder = folder("off");
    let log = Log::new();
    assert!(log.open(
        folder.as_os_str().as_bytes(),
        std::process::id(),
        5,
        1 << 30
    ));
    std::thread::scope(|scope| {
        let lock = log.lock().unwrap();
        let (send, receive) = std::sync::mpsc::channel();
        let log = &log;
        let claims = scope.spawn(move || {
            send.send(sys::gettid()).unwrap();
            log.claim(&mut Thread::default(), false)
        });
        let status = format!("/proc/self/task/{}/status", receive.recv().unwrap());
        let sleeps = || {
            let status = std::fs::read_to_string(&status).unwrap_or_default();
            status.is_empty() || status.contains("State:\tS")
        };
        while !sleeps() {
            std::thread::yield_now();
        }
        log.on.store(false, Ordering::Release);
        drop(lock);
        assert!(!claims.join().unwrap());
    });
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    std::fs::remove_dir_all(folder).unwrap();
}
