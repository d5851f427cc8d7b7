//! Programs, libraries and debug files that others wrote, read without being mapped.
//!
//! A file that is mapped and cut short by its owner ends whoever reads the map (SIGBUS). [`Contents`] reads a file's blocks
//! into memory of nearpage's own at first use, and a block that is gone is an error. [`Lines`] looks up functions and lines
//! in debug information that is read the same way.

mod contents;
mod lines;

pub use contents::Contents;
pub use lines::{CodeFrame, Lines};

/// `name` as people write it, without the version that a dynamic symbol may have (`stdout@@GLIBC_2.2.5`).
pub fn demangle(name: &str) -> String {
    let name = name.split_once('@').map_or(name, |(name, _)| name);
    if !nearpage_wire::is_mangled(name) {
        return name.to_owned();
    }
    addr2line::demangle_auto(name.into(), None).into_owned()
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
        ] {
            assert_eq!(demangle(name), readable);
        }
        // Each of these names encodes a C++ type: bool, __int128, char const*.
        for name in ["b", "n", "PKc"] {
            assert_eq!(demangle(name), name);
        }
    }
}
