use std::ffi::CString;

use super::*;

/// The environment that a program gets in place of `given`; `None` where it gets `given`.
fn composed(given: &[&str], fits: bool) -> Option<Vec<String>> {
    let given: Vec<CString> = given
        .iter()
        .map(|text| CString::new(*text).unwrap())
        .collect();
    let given: Vec<*const c_char> = given.iter().map(|text| text.as_ptr()).collect();
    let mut text = [0u8; 256];
    let mut pointers = [core::ptr::null(); 8];
    // SAFETY: all are terminated.
    unsafe {
        let library = c"/l/libnearpage_preload.so";
        compose(&given, library, fits, &mut text, &mut pointers)?;
        let made = entries(pointers.as_ptr());
        let text = |entry: &*const c_char| CStr::from_ptr(*entry).to_str().unwrap().to_owned();
        Some(made.iter().map(text).collect())
    }
}

#[test]
fn an_emptied_environment_gets_the_library_and_its_variables_back() {
    let kept = CString::new("NEARPAGE_LOG=/log").unwrap().into_raw();
    VARIABLES[0].store(kept as usize, Ordering::Relaxed);
    let own = "LD_PRELOAD=/l/libnearpage_preload.so";
    let log = "NEARPAGE_LOG=/log";
    assert_eq!(composed(&[], true).unwrap(), [own, log]);
    assert_eq!(composed(&["A=1"], true).unwrap(), [own, "A=1", log]);
    let other = "NEARPAGE_LOG=/other";
    let with_others = format!("{own}:/a.so:/b.so");
    let given = ["LD_PRELOAD=/a.so /b.so", other];
    assert_eq!(composed(&given, true).unwrap(), [&*with_others, other]);
    assert_eq!(composed(&[&with_others, log], true), None);
    assert_eq!(composed(&["NEARPAGE_DISABLE=1"], true), None, "as told");
    // Where there is no room, the environment stays as it is.
    assert_eq!(composed(&["A=1"; 7], true), None);
    assert_eq!(
        composed(&[&format!("LD_PRELOAD=/{}", "a".repeat(250))], true),
        None
    );

    assert_eq!(composed(&["A=1"], false), None);
    assert_eq!(composed(&[own, "A=1", log], false).unwrap(), ["A=1", log]);
    let others = "LD_PRELOAD=/a.so:/b.so";
    assert_eq!(composed(&[&with_others], false).unwrap(), [others]);
}

#[test]
fn the_library_is_found_among_what_is_preloaded() {
    let found = |value: &'static str| own_library(value.as_bytes());
    let own = b"/x/libnearpage_preload.so";
    assert_eq!(found("/a.so:/x/libnearpage_preload.so"), Some(&own[..]));
    assert_eq!(found("/x/libnearpage_preload.so /a.so"), Some(&own[..]));
    assert_eq!(found("/libnearpage_preload.so/a.so"), None);
    assert_eq!(found(""), None);
}
