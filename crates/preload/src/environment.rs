//! The environment, read without the C library's functions (which programs may replace).

use core::ffi::{CStr, c_char};

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// Has the C library set up the environment? The loader may call `malloc` before.
pub fn is_ready() -> bool {
    // SAFETY: a pointer-sized variable of the C library; read once, compared only.
    !unsafe { (&raw const environ).read_volatile() }.is_null()
}

/// The entries of the environment, `NAME=VALUE` each. A terminator follows each of them.
///
/// The bytes belong to the environment: copy what must outlive a `setenv` of the program.
pub fn all() -> impl Iterator<Item = &'static [u8]> {
    // SAFETY: the C library keeps `environ` a null-terminated array of terminated strings. Read
    // while the process starts or executes a program, or by a thread just forked: nothing else changes it then.
    let mut entry = unsafe { (&raw const environ).read_volatile() };
    core::iter::from_fn(move || {
        // SAFETY: as above; the entry after the last one is null.
        unsafe {
            if entry.is_null() || (*entry).is_null() {
                return None;
            }
            let text = CStr::from_ptr(*entry).to_bytes();
            entry = entry.add(1);
            Some(text)
        }
    })
}

/// The array in which the C library keeps the environment.
pub fn own() -> *const *const c_char {
    // SAFETY: as in `all`.
    unsafe { (&raw const environ).read_volatile() }
}

/// The value of the environment variable `name`, without its terminator; `None` when it is unset.
pub fn variable(name: &str) -> Option<&'static [u8]> {
    all().find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

/// The value of the environment variable `name` as the path of a file, with its terminator; `None` when it is no
/// absolute path.
pub fn path(name: &str) -> Option<&'static [u8]> {
    let value = variable(name).filter(|value| value.starts_with(b"/"))?;
    // SAFETY: the value is followed by its terminator.
    Some(unsafe { CStr::from_ptr(value.as_ptr().cast()) }.to_bytes_with_nul())
}

/// Does the environment switch this library off?
pub fn is_disabled() -> bool {
    variable(nearpage_wire::DISABLE_VARIABLE) == Some(b"1")
}

/// The variable as an unsigned decimal number; `None` when it is unset or no such number.
pub fn number(name: &str) -> Option<u64> {
    let value = variable(name)?;
    if value.is_empty() {
        return None;
    }
    value.iter().try_fold(0u64, |sum, byte| {
        let digit = byte.wrapping_sub(b'0');
        (digit < 10)
            .then(|| sum.checked_mul(10)?.checked_add(digit.into()))
            .flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_found_by_their_whole_name() {
        let path = std::env::var("PATH").unwrap();
        assert!(is_ready());
        assert_eq!(variable("PATH"), Some(path.as_bytes()));
        assert_eq!(variable("PAT"), None);
        assert_eq!(number("PATH"), None);
        assert_eq!(
            super::path("PATH"),
            path.starts_with('/')
                .then(|| [path.as_bytes(), b"\0"].concat())
                .as_deref()
        );
        assert_eq!(super::path("NEARPAGE_NO_SUCH_VARIABLE"), None);
        assert_eq!(number("NEARPAGE_NO_SUCH_VARIABLE"), None);
    }
}
