//! The environment, read without the C library's functions (which programs may replace).

use core::ffi::{CStr, c_char};

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// Is there an environment yet? The loader may call `malloc` before the C library has one.
pub fn is_ready() -> bool {
    // SAFETY: a pointer-sized variable of the C library; read once, compared only.
    !unsafe { (&raw const environ).read_volatile() }.is_null()
}

/// The value of the environment variable `name`, without its terminator; `None` when it is unset.
///
/// The bytes belong to the environment: copy what must outlive a `setenv` of the program.
pub fn variable(name: &str) -> Option<&'static [u8]> {
    // SAFETY: the C library keeps `environ` a null-terminated array of terminated strings. Read
    // while the process starts, or by a thread just forked: nothing else changes it then.
    unsafe {
        let mut entry = (&raw const environ).read_volatile();
        while !entry.is_null() && !(*entry).is_null() {
            let text = CStr::from_ptr(*entry).to_bytes();
            if let Some(value) = text
                .strip_prefix(name.as_bytes())
                .and_then(|rest| rest.strip_prefix(b"="))
            {
                return Some(value);
            }
            entry = entry.add(1);
        }
    }
    None
}

/// Is the library to do nothing?
pub fn is_disabled() -> bool {
    variable(nearpage_wire::DISABLE_VARIABLE) == Some(b"1")
}

/// The variable as an unsigned decimal number; `None` when it is unset or something else.
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
        assert_eq!(number("NEARPAGE_NO_SUCH_VARIABLE"), None);
    }
}
