//! Names of functions in files that have no name (any more): a memfd, or a file that was removed or replaced while it
//! ran. Such a file cannot be found after the recording. The recorder therefore keeps its function table in the
//! recording's folder, in the form of a map of generated code ([`jit`](crate::jit)), with names as in the file.

use std::fmt::Write as _;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::elf::ElfFile;
use crate::{Module, folder};

/// Path of the function table of a module, if one was kept.
pub(crate) fn map_of(folder: &Path, module: &Module) -> PathBuf {
    let key = format!("{}\0{}", module.path, module.build_id);
    let number = nearpage_wire::checksum::crc32(key.as_bytes());
    folder.join(format!("functions-{number:08x}.map"))
}

/// Keeps the functions of a module if its file, to which `opened` leads, has no name. `module` is as in the log and may
/// lack its build-id.
///
/// # Errors
/// Errors of the system; the functions then have no names.
pub(crate) fn keep(folder: &Path, mut module: Module, opened: &Path) -> io::Result<()> {
    if opened.metadata()?.nlink() > 0 {
        return Ok(());
    }
    let file = ElfFile::open(opened).map_err(io::Error::other)?;
    if module.build_id.is_empty() {
        module.build_id = file.build_id();
    }
    let mut map = String::new();
    for function in file.functions() {
        let (address, bytes) = (function.address, function.size_bytes);
        let _ = writeln!(map, "{address:x} {bytes:x} {}", function.name);
    }
    folder::replace(&map_of(folder, &module), map.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ModuleId, Symbols};

    #[inline(never)]
    fn function_of_this_test() -> usize {
        std::hint::black_box(function_of_this_test as fn() -> usize as usize)
    }

    #[test]
    fn functions_of_a_file_without_a_name_are_named_when_it_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let this = std::env::current_exe().unwrap();
        let copy = folder.path().join("copy");
        std::fs::copy(&this, &copy).unwrap();
        let opened = std::fs::File::open(&copy).unwrap();
        use std::os::fd::AsRawFd;
        let link = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
        let mut module = Module {
            path: "/memfd:copy (deleted)".to_owned(),
            build_id: String::new(),
        };
        let named = |module: &Module| {
            let functions = ElfFile::open(&this).unwrap().functions();
            let function = functions
                .iter()
                .find(|function| function.name.contains("function_of_this_test"));
            let at = function.unwrap().address + 1;
            let mut symbols = Symbols::of_recording(folder.path(), std::slice::from_ref(module));
            symbols.instruction(ModuleId(0), at)[0].function.clone()
        };
        keep(folder.path(), module.clone(), &link).unwrap();
        module.build_id = ElfFile::open(&this).unwrap().build_id();
        assert_eq!(named(&module), "", "the file has a name: nothing is kept");

        std::fs::remove_file(&copy).unwrap();
        keep(folder.path(), module.clone(), &link).unwrap();
        let name = named(&module);
        assert!(name.ends_with("function_of_this_test"), "{name}");
        assert_ne!(function_of_this_test(), 0);
    }
}
