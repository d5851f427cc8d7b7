//! Where a thread's stack and static thread-local storage lie.

use crate::message::Text;
use crate::real;
use crate::sys;
use crate::thread::Thread;

/// `RLIMIT_STACK`.
const RESOURCE_STACK: usize = 3;
/// Stands for the main stack's size where the size is unlimited.
const UNLIMITED_STACK_BYTES: u64 = 64 << 20;
/// Upper bound of what the C library keeps at and above the thread pointer.
const CONTROL_BLOCK_BYTES: usize = 4096;

/// The numbers of a line of `/proc/PID/maps` that ends in this name.
fn named_line(line: &[u8], name: &[u8]) -> Option<[usize; 2]> {
    let line = line.strip_suffix(name)?;
    let mut bounds = [0usize; 2];
    let mut which = 0;
    for byte in line {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'-' if which == 0 => {
                which = 1;
                continue;
            }
            b' ' => break,
            _ => return None,
        };
        let bound = bounds.get_mut(which)?;
        *bound = bound.checked_mul(16)?.checked_add(digit.into())?;
    }
    (bounds[0] < bounds[1]).then_some(bounds)
}

/// The main thread's stack as it is mapped now: first byte, and the one after the last.
pub fn main_stack_mapping() -> Option<(usize, usize)> {
    named_mapping(b"[stack]")
}

/// First byte of the heap that `brk` extends, whether there is any of it yet or not; 0: not known.
pub fn heap_start() -> usize {
    named_mapping(b"[heap]").map_or_else(sys::program_break, |(start, _)| start)
}

/// The first mapping of the process that the kernel calls so.
fn named_mapping(name: &[u8]) -> Option<(usize, usize)> {
    let fd = sys::open(b"/proc/thread-self/maps\0", sys::O_RDONLY).ok()?;
    let mut buffer = [0u8; 1024];
    let mut line = Text::<256>::new();
    let mut found = None;
    while let Ok(bytes @ 1..) = sys::read(fd, &mut buffer) {
        for byte in buffer.iter().take(bytes) {
            if *byte == b'\n' {
                found = found.or_else(|| named_line(line.as_bytes(), name));
                line = Text::new();
            } else {
                line.push(&[*byte]);
            }
        }
        if found.is_some() {
            break;
        }
    }
    sys::close(fd);
    found.map(|[low, high]| (low, high))
}

/// The main thread's stack: its top from `/proc/self/maps`, its depth from the resource limit.
pub fn main_stack() -> [usize; 2] {
    let Some((low, high)) = main_stack_mapping() else {
        return [0; 2];
    };
    let limit = match sys::resource_limit(RESOURCE_STACK) {
        Ok(u64::MAX) | Err(_) => UNLIMITED_STACK_BYTES,
        Ok(limit) => limit,
    };
    [low.min(high.saturating_sub(limit as usize)), high]
}

/// The static thread-local storage of the calling thread, the control block included.
pub fn local_storage(static_bytes: usize) -> [usize; 2] {
    let pointer = Thread::pointer();
    if cfg!(target_arch = "x86_64") {
        [
            pointer.saturating_sub(static_bytes),
            (pointer + 1).next_multiple_of(CONTROL_BLOCK_BYTES),
        ]
    } else {
        [
            pointer.saturating_sub(CONTROL_BLOCK_BYTES),
            pointer + 16 + static_bytes,
        ]
    }
}

/// The stack of a thread, from the attributes that its creator passed: low and bytes where the
/// program gave the memory, otherwise 0 and bytes.
///
/// # Safety
/// `attributes` is null or points to initialised thread attributes.
pub unsafe fn stack_of_attributes(attributes: *const core::ffi::c_void) -> [usize; 2] {
    let (mut low, mut bytes) = (0usize, 0usize);
    // SAFETY: the caller's promise; the local attributes are large enough for every C library
    // (56 bytes on x86-64, 64 on AArch64) and are initialised before use.
    unsafe {
        if attributes.is_null() {
            let mut own = [0u64; 32];
            let own = own.as_mut_ptr().cast();
            if real::pthread_attr_init(own) == 0 {
                real::pthread_attr_getstacksize(own, &mut bytes);
                real::pthread_attr_destroy(own);
            }
        } else {
            real::pthread_attr_getstacksize(attributes, &mut bytes);
            let mut given = 0usize;
            real::pthread_attr_getstack(attributes, &mut low, &mut given);
            // Without memory of the program's, glibc answers with a stack that ends at address 0.
            if low.wrapping_add(given) == 0 || low == 0 {
                low = 0;
            }
        }
    }
    [low, bytes]
}

/// The calling thread's stack, from what [`stack_of_attributes`] said in its creator. The C library
/// puts static thread-local storage at the top of the stacks it makes.
pub fn thread_stack(attributes: [usize; 2], local_storage: [usize; 2]) -> [usize; 2] {
    let [low, bytes] = attributes;
    if bytes == 0 {
        return [0; 2];
    }
    if low != 0 {
        return [low, low + bytes];
    }
    [local_storage[1].saturating_sub(bytes), local_storage[0]]
}

/// The whole pages of the memory that the calling thread's stack was put in, thread-local storage
/// included: `attributes` and `local_storage` as for [`thread_stack`]. None where it is not known.
pub fn stack_pages(
    attributes: [usize; 2],
    local_storage: [usize; 2],
    page_bytes: usize,
) -> Option<(usize, usize)> {
    let [given, bytes] = attributes;
    let page = page_bytes.checked_next_power_of_two()?;
    let (low, end) = match given {
        // The control block is in the last page of what the C library mapped.
        0 => {
            let end = local_storage[1].checked_next_multiple_of(page)?;
            (end.checked_sub(bytes)?, end)
        }
        low => (low, low.checked_add(bytes)? & !(page - 1)),
    };
    let start = low.checked_next_multiple_of(page)?;
    (bytes > 0 && start < end).then_some((start, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps_are_read() {
        assert_eq!(
            named_line(
                b"7ffd1000-7ffd3000 rw-p 00000000 00:00 0                          [stack]",
                b"[stack]"
            ),
            Some([0x7ffd_1000, 0x7ffd_3000])
        );
        assert_eq!(
            named_line(
                b"7ffd1000-7ffd3000 rw-p 00000000 00:00 0  [heap]",
                b"[stack]"
            ),
            None
        );
        assert_eq!(named_line(b"[stack]", b"[stack]"), None);
        assert_eq!(named_line(b"fffffffffffffffff-1 [stack]", b"[stack]"), None);
    }

    #[test]
    fn whole_pages_of_a_stack() {
        let storage = [0x7f10_0000_e800, 0x7f10_0001_0000];
        let pages = |attributes| stack_pages(attributes, storage, 4096);
        assert_eq!(
            pages([0, 0x8000]),
            Some((0x7f10_0000_8000, 0x7f10_0001_0000))
        );
        assert_eq!(
            pages([0, 0x8001]),
            Some((0x7f10_0000_8000, 0x7f10_0001_0000)),
            "no more than there is"
        );
        // The program's own memory: what is around it stays as it is.
        assert_eq!(pages([0x20010, 0x8000]), Some((0x21000, 0x28000)));
        assert_eq!(pages([0x20000, 0x8000]), Some((0x20000, 0x28000)));
        assert_eq!(pages([0x20010, 0xff0]), None);
        assert_eq!(pages([0, 0]), None);
        assert_eq!(pages([usize::MAX - 10, 100]), None);
        assert_eq!(
            stack_pages([0, 0x20000], [0x10_f000, 0x10_e000], 1 << 16),
            Some((0xf_0000, 0x11_0000)),
            "larger pages"
        );
    }

    #[test]
    fn this_processes_main_stack_is_found() {
        let [low, high] = main_stack();
        assert!(low < high && high - low >= 1 << 16);
        let (start, end) = main_stack_mapping().unwrap();
        assert!(low <= start && start < end && end == high);
    }
}
