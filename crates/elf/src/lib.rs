//! Reads programs, libraries and debug files that others wrote, without mapping them.
//!
//! If the owner of a mapped file cuts it short, readers of the map are killed (SIGBUS). [`Contents`] reads a file's
//! blocks into memory of nearpage's own at first use, and a block that is gone is an error. [`Lines`] looks up
//! functions and lines in debug information that is read through [`Contents`].

mod build_id;
mod contents;
mod lines;

pub use build_id::leading_build_id;
pub use contents::Contents;
pub use lines::{CodeFrame, Lines};

/// Demangles `name`, without the version that a dynamic symbol may have (`stdout@@GLIBC_2.2.5`).
pub fn demangle(name: &str) -> String {
    let name = name.split_once('@').map_or(name, |(name, _)| name);
    if !nearpage_wire::is_mangled(name) {
        return name.to_owned();
    }
    let demangled = addr2line::demangle_auto(name.into(), None);
    let named = (demangled == name).then(|| qualified_name(name)).flatten();
    named.unwrap_or_else(|| demangled.into_owned())
}

/// Fallback for names that the demangler does not know, for example with the standard library's `__enable_if` in a
/// template's return type: the plain names at the beginning of the encoding, as in `_ZSt9__fill_a1I…` or
/// `_ZN4mesh5solveI…`. `None` if the name is encoded otherwise (Itanium C++ ABI, section 5.1).
fn qualified_name(mangled: &str) -> Option<String> {
    let rest = mangled.strip_prefix("_Z")?;
    let nested = rest.strip_prefix('N');
    let mut rest = nested.unwrap_or(rest).trim_start_matches(['r', 'V', 'K']);
    let mut names = Vec::new();
    if let Some(of_std) = rest.strip_prefix("St") {
        names.push("std");
        rest = of_std;
    }
    while rest.starts_with(|first: char| first.is_ascii_digit()) {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (length, name) = rest.split_at(digits);
        let name = name.get(..length.parse().ok()?)?;
        names.push(name);
        rest = &rest[digits + name.len()..];
        if nested.is_none() {
            break;
        }
    }
    let is_whole = nested.is_none() || rest.starts_with(['I', 'E']);
    let has_own_name = names.last().is_some_and(|&last| last != "std");
    (is_whole && has_own_name).then(|| names.join("::"))
}

#[cfg(test)]
mod tests {
    use super::demangle;

    #[test]
    fn only_what_a_compiler_has_encoded_is_demangled() {
        for (name, readable) in [
            ("_ZN4mesh5solveEv", "mesh::solve()"),
            ("_ZSt4cout@GLIBCXX_3.4", "std::cout"),
            ("_RNvC4demo5sweep", "demo::sweep"),
            ("stdout@@GLIBC_2.2.5", "stdout"),
            // The demangler gives up on these.
            (
                "_ZSt9__fill_a1IP4BodyS0_EN9__gnu_cxx11__enable_ifIXntsrSt11__is_scalarIT0_E7__valueEvE6__typeET_S9_RKS5_",
                "std::__fill_a1",
            ),
            ("_ZN4mesh5solveIXnosuchEE", "mesh::solve"),
            ("_Z99short", "_Z99short"),
            ("_ZSt", "_ZSt"),
        ] {
            assert_eq!(demangle(name), readable);
        }
        // Each of these names encodes a C++ type: bool, __int128, char const*.
        for name in ["b", "n", "PKc"] {
            assert_eq!(demangle(name), name);
        }
    }
}
