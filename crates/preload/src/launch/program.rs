//! Can a program that is about to be executed load this library? Its file tells.

use core::ffi::{CStr, c_char};

use nearpage_wire::sanitizer;

use crate::{environment, sys};

/// Most scripts whose interpreters are scripts: the kernel's limit.
const SCRIPT_DEPTH_MAX: u32 = 5;
/// Folders that `execvp` searches without `PATH`.
const DEFAULT_PATH: &[u8] = b"/bin:/usr/bin";
/// Most bytes of a table of strings that are searched.
const STRINGS_BYTES_MAX: u64 = 16 << 20;
/// Bytes that are read at once.
const PIECE_BYTES: usize = 4 << 10;

/// How a program is named to the system.
#[derive(Clone, Copy, Debug)]
pub enum Program {
    /// By its path.
    Path(*const c_char),
    /// By a name that is searched in the folders of `PATH`.
    Name(*const c_char),
    /// By a folder's descriptor and a path relative to it, or a file's descriptor and an empty path.
    At(i32, *const c_char),
}

/// Can a program load the library?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// The program can load the library, or the file does not tell.
    Fits,
    /// The program has this sanitizer.
    Sanitized(&'static str),
    /// The program's loader would complain about the library.
    OtherArchitecture,
}

impl Program {
    /// Reads the program's file.
    ///
    /// # Safety
    /// The path is terminated.
    pub unsafe fn fit(&self, buffer: &mut [u8]) -> Fit {
        // SAFETY: the caller's promise.
        let opened = unsafe { self.open(buffer) };
        let Some(mut file) = opened else {
            return Fit::Fits;
        };
        for _ in 0..SCRIPT_DEPTH_MAX {
            match interpreter(file.0, buffer) {
                None => return fit_of_elf(file.0, buffer),
                Some(None) => return Fit::Fits,
                Some(Some(opened)) => file = opened,
            }
        }
        Fit::Fits
    }

    /// The name or path by which it is executed.
    ///
    /// # Safety
    /// The path is terminated.
    pub unsafe fn name(&self) -> &str {
        let (Self::Path(path) | Self::Name(path) | Self::At(_, path)) = self;
        // SAFETY: the caller's promise.
        let name = unsafe { CStr::from_ptr(*path) }.to_str();
        name.unwrap_or("a program").trim_start()
    }

    unsafe fn open(&self, buffer: &mut [u8]) -> Option<File> {
        // SAFETY: the caller's promise.
        unsafe {
            match *self {
                Self::Path(path) => File::open(CStr::from_ptr(path).to_bytes_with_nul()),
                Self::Name(name) => {
                    let name = CStr::from_ptr(name).to_bytes_with_nul();
                    match name.contains(&b'/') {
                        true => File::open(name),
                        false => in_search_path(name, buffer),
                    }
                }
                Self::At(folder, path) => {
                    let path = CStr::from_ptr(path).to_bytes_with_nul();
                    if path.len() > 1 {
                        return File::open_at(folder as usize, path);
                    }
                    // The library opens the file again, so that it can read and close it: the program's descriptor may be of a path alone.
                    let mut link = crate::message::Text::<48>::new();
                    link.push(b"/proc/thread-self/fd/");
                    link.push_number(u64::try_from(folder).ok()?);
                    link.push(b"\0");
                    File::open(link.as_bytes())
                }
            }
        }
    }
}

/// The first program of that name, with its terminator, in the folders of `PATH`.
fn in_search_path(name: &[u8], buffer: &mut [u8]) -> Option<File> {
    let path = environment::variable("PATH").unwrap_or(DEFAULT_PATH);
    path.split(|byte| *byte == b':').find_map(|folder| {
        let slash: &[u8] = match folder {
            [] | [.., b'/'] => b"",
            _ => b"/",
        };
        let mut end = 0;
        for part in [folder, slash, name] {
            buffer.get_mut(end..end + part.len())?.copy_from_slice(part);
            end += part.len();
        }
        File::open(buffer.get(..end)?)
    })
}

/// A descriptor of a regular file, closed when dropped.
struct File(usize);

impl File {
    fn open(path: &[u8]) -> Option<Self> {
        Self::open_at(sys::AT_FDCWD, path)
    }

    fn open_at(folder: usize, path: &[u8]) -> Option<Self> {
        // A pipe must not be waited for.
        let file = Self(sys::open_at(folder, path, sys::O_RDONLY | sys::O_NONBLOCK).ok()?);
        sys::file_status(file.0)
            .is_ok_and(|status| status.is_regular)
            .then_some(file)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        sys::close(self.0);
    }
}

/// The interpreter of a script: `None`, it is none; `Some(None)`, it cannot be read.
fn interpreter(script: usize, buffer: &mut [u8]) -> Option<Option<File>> {
    let read = sys::read_at(script, buffer.get_mut(..256)?, 0).unwrap_or(0);
    let line = buffer.get(..read)?.strip_prefix(b"#!")?;
    let start = line.iter().position(|byte| !b" \t".contains(byte));
    let start = 2 + start.unwrap_or(line.len());
    let path = buffer.get(start..read)?;
    let end = path.iter().position(|byte| b" \t\n\0".contains(byte));
    let end = start + end.unwrap_or(path.len());
    let Some(terminator) = buffer.get_mut(end) else {
        return Some(None);
    };
    *terminator = 0;
    Some(buffer.get(start..=end).and_then(File::open))
}

/// Checks the header and the dynamic strings of an ELF file.
fn fit_of_elf(file: usize, buffer: &mut [u8]) -> Fit {
    const HEADER_BYTES: usize = 64;
    const CLASS_64: u8 = 2;
    const LITTLE_ENDIAN: u8 = 1;
    const MACHINE: u16 = if cfg!(target_arch = "x86_64") {
        62
    } else {
        183
    };
    let Some(header) = buffer.get_mut(..HEADER_BYTES) else {
        return Fit::Fits;
    };
    if sys::read_at(file, header, 0) != Ok(HEADER_BYTES) || !header.starts_with(b"\x7fELF") {
        return Fit::Fits;
    }
    let own = header[4] == CLASS_64 && header[5] == LITTLE_ENDIAN && half(header, 18) == MACHINE;
    if !own {
        return Fit::OtherArchitecture;
    }
    let sections = word(header, 40);
    let count = usize::from(half(header, 60));
    if usize::from(half(header, 58)) != SECTION_BYTES {
        return Fit::Fits;
    }
    for number in 0..count {
        let at = sections.saturating_add((number * SECTION_BYTES) as u64);
        if let Some((offset, bytes)) = dynamic_strings(file, at, buffer)
            && let Some(sanitizer) = sanitizer_in(file, offset, bytes, buffer)
        {
            return Fit::Sanitized(sanitizer);
        }
    }
    Fit::Fits
}

/// Bytes of an entry in an ELF file's table of sections.
const SECTION_BYTES: usize = 64;

/// Offset and size of the section at entry `at`, if it is a table of strings that is loaded.
fn dynamic_strings(file: usize, at: u64, buffer: &mut [u8]) -> Option<(u64, u64)> {
    const STRINGS: u32 = 3;
    const LOADED: u64 = 2;
    let section = buffer.get_mut(..SECTION_BYTES)?;
    if sys::read_at(file, section, at) != Ok(SECTION_BYTES) {
        return None;
    }
    let kind = u32::from_le_bytes(*section.get(4..)?.first_chunk()?);
    let is_it = kind == STRINGS && word(section, 8) & LOADED != 0;
    is_it.then(|| (word(section, 24), word(section, 32)))
}

/// The sanitizer that a table of strings names, read in pieces that overlap by the longest name.
fn sanitizer_in(file: usize, offset: u64, bytes: u64, buffer: &mut [u8]) -> Option<&'static str> {
    const STEP_BYTES: usize = PIECE_BYTES - sanitizer::NAME_BYTES_MAX - 1;
    let bytes = bytes.min(STRINGS_BYTES_MAX);
    for at in (0..bytes).step_by(STEP_BYTES) {
        let wanted = PIECE_BYTES.min((bytes - at) as usize);
        let piece = buffer.get_mut(..wanted)?;
        let read = sys::read_at(file, piece, offset.saturating_add(at)).ok()?;
        let piece = piece.get(..read)?;
        // A piece may begin within a string.
        let start = match at {
            0 => Some(0),
            _ => piece.iter().position(|byte| *byte == 0),
        };
        let found = start.and_then(|start| sanitizer::named_in(piece.get(start..)?));
        if found.is_some() {
            return found;
        }
    }
    None
}

fn half(bytes: &[u8], at: usize) -> u16 {
    let half = bytes.get(at..).and_then(<[u8]>::first_chunk);
    half.map_or(0, |half| u16::from_le_bytes(*half))
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk);
    word.map_or(0, |word| u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::path::Path;

    use super::*;

    fn fit(path: &Path) -> Fit {
        let path = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: the path is terminated.
        unsafe { Program::Path(path.as_ptr()).fit(&mut [0; 8192]) }
    }

    /// An ELF file with a loaded table of strings.
    fn elf(machine: u16, strings: &[u8]) -> Vec<u8> {
        let mut file = vec![0u8; 64 + 2 * SECTION_BYTES];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[18..20].copy_from_slice(&machine.to_le_bytes());
        file[40..48].copy_from_slice(&64u64.to_le_bytes());
        file[58..60].copy_from_slice(&64u16.to_le_bytes());
        file[60..62].copy_from_slice(&2u16.to_le_bytes());
        let section = 64 + SECTION_BYTES;
        let offset = file.len() as u64;
        file[section + 4] = 3;
        file[section + 8] = 2;
        file[section + 24..section + 32].copy_from_slice(&offset.to_le_bytes());
        file[section + 32..section + 40].copy_from_slice(&(strings.len() as u64).to_le_bytes());
        file.extend_from_slice(strings);
        file
    }

    #[test]
    fn programs_that_the_library_must_not_enter_are_known_by_their_files() {
        const OWN: u16 = if cfg!(target_arch = "x86_64") {
            62
        } else {
            183
        };
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        assert_eq!(fit(&std::env::current_exe().unwrap()), Fit::Fits);
        assert_eq!(fit(Path::new("/no/such/program")), Fit::Fits);
        assert_eq!(fit(folder.path()), Fit::Fits);
        assert_eq!(fit(&write("other", &elf(3, b""))), Fit::OtherArchitecture);
        assert_eq!(fit(&write("plain", &elf(OWN, b"\0libc.so.6\0"))), Fit::Fits);
        // The name lies wherever pieces meet.
        for before in PIECE_BYTES - 40..PIECE_BYTES + 10 {
            let strings = [&vec![b'a'; before][..], b"\0libtsan.so.2\0"].concat();
            let found = fit(&write("threads", &elf(OWN, &strings)));
            assert_eq!(found, Fit::Sanitized("ThreadSanitizer"), "{before}");
            let strings = [&vec![b'a'; before][..], b"libtsan.so.2\0"].concat();
            assert_eq!(fit(&write("not", &elf(OWN, &strings))), Fit::Fits);
        }
        let interpreter = folder.path().join("threads");
        let script = format!("#! {} -x\nbody", interpreter.display());
        let script = write("script", script.as_bytes());
        assert_eq!(fit(&script), Fit::Sanitized("ThreadSanitizer"));
        assert_eq!(fit(&write("no_interpreter", b"#!/no/such\n")), Fit::Fits);
        assert_eq!(fit(&write("empty", b"")), Fit::Fits);
        let own = folder.path().join("itself");
        std::fs::write(&own, format!("#!{}\n", own.display())).unwrap();
        assert_eq!(fit(&own), Fit::Fits);
    }

    #[test]
    fn a_pipe_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        assert_eq!(fit(&pipe), Fit::Fits);
    }
}
