//! Recognises programs that contain a sanitizer. Its runtime insists on being the first library of the process, or
//! takes other memory for the program's, so that such a program does not survive the preload library.

/// Beginnings of the names by which a program refers to a sanitizer's runtime: the library, or a function of the
/// runtime if it is linked into the program itself.
const NAMES: [(&[u8], &str); 15] = [
    (b"libasan.so", "AddressSanitizer"),
    (b"libclang_rt.asan", "AddressSanitizer"),
    (b"__asan_init", "AddressSanitizer"),
    (b"liblsan.so", "LeakSanitizer"),
    (b"libclang_rt.lsan", "LeakSanitizer"),
    (b"__lsan_init", "LeakSanitizer"),
    (b"libtsan.so", "ThreadSanitizer"),
    (b"libclang_rt.tsan", "ThreadSanitizer"),
    (b"__tsan_init", "ThreadSanitizer"),
    (b"libhwasan.so", "HWAddressSanitizer"),
    (b"libclang_rt.hwasan", "HWAddressSanitizer"),
    (b"__hwasan_init", "HWAddressSanitizer"),
    (b"libclang_rt.msan", "MemorySanitizer"),
    (b"__msan_init", "MemorySanitizer"),
    (b"__dfsan_init", "DataFlowSanitizer"),
];

/// Longest of these names, in bytes. A reader of a table in pieces must keep this much together.
pub const NAME_BYTES_MAX: usize = 18;

/// The sanitizer named in a program's table of dynamic strings (`.dynstr`).
pub fn named_in(strings: &[u8]) -> Option<&'static str> {
    strings.split(|byte| *byte == 0).find_map(|string| {
        let begins = |name: &&(&[u8], &str)| string.starts_with(name.0);
        NAMES.iter().find(begins).map(|(_, sanitizer)| *sanitizer)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sanitizers_are_known_by_library_or_function() {
        for (strings, found) in [
            (
                &b"\0libc.so.6\0libasan.so.8\0malloc"[..],
                Some("AddressSanitizer"),
            ),
            (b"\0malloc\0__tsan_init\0", Some("ThreadSanitizer")),
            (b"\0liblsan.so.0\0", Some("LeakSanitizer")),
            (b"libclang_rt.hwasan-x86_64.so", Some("HWAddressSanitizer")),
            (b"\0libubsan.so.1\0libc.so.6\0my__asan_init\0", None),
            (b"", None),
        ] {
            assert_eq!(named_in(strings), found);
        }
        assert!(NAMES.iter().all(|(name, _)| name.len() <= NAME_BYTES_MAX));
    }
}
