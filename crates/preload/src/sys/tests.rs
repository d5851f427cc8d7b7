use super::*;

#[test]
#[cfg(target_arch = "x86_64")]
fn the_segment_tells_the_cpu() {
    // The thread may move to another CPU between the two calls, but not every time.
    let agree = || {
        let mut cpu = 0u32;
        // SAFETY: the kernel writes one number.
        unsafe { call(number::GETCPU, [&raw mut cpu as usize, 0, 0, 0, 0, 0]) }.unwrap();
        segment_cpu() == Some(cpu)
    };
    assert!((0..1_000_000).any(|_| agree()));
}

#[test]
fn calls_agree_with_the_library() {
    assert_eq!(getpid(), std::process::id());
    assert!(monotonic_ns() > 0);
    let memory = reserve(1 << 20).unwrap();
    // SAFETY: just mapped.
    unsafe {
        *(memory as *mut u8) = 1;
        munmap(memory, 1 << 20).unwrap();
    }
    assert_eq!(open(b"/no/such/file\0", O_RDONLY), Err(Errno(2)));
    let fd = open(b"/proc/self/comm\0", O_RDONLY).unwrap();
    let mut buffer = [0; 64];
    assert!(read(fd, &mut buffer).unwrap() > 1);
    close(fd);
    let mut mask = [0u64; 16];
    assert!(sched_getaffinity(0, &mut mask).unwrap() >= 8);
    assert_ne!(mask, [0; 16]);
}

#[test]
fn numbers_from_outside_are_those_of_proc() {
    let link = std::fs::read_link("/proc/thread-self").unwrap();
    let [pid, tid] = outside_numbers().unwrap();
    assert_eq!(link.to_str().unwrap(), format!("{pid}/task/{tid}"));
}
