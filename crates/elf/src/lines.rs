//! Functions and lines of code, from a file's debug information (DWARF).

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use addr2line::{Context, LookupContinuation as _, LookupResult, SplitDwarfLoad};
use gimli::{
    AbbreviationsCacheStrategy, Dwarf, DwarfPackage, EndianArcSlice, Error, Reader as _,
    RunTimeEndian, SectionId,
};
use object::read::CompressionFormat;
use object::{Object as _, ObjectSection as _};

use crate::{Contents, demangle};

/// Most bytes of debug information of one file that are kept, as sparse and compressed files may claim any number.
const BYTES_MAX: u64 = 4 << 30;

type Bytes = EndianArcSlice<RunTimeEndian>;

/// The line table of a program or library, and of the files that it was split into (`.dwo`, `.dwp`).
pub struct Lines {
    context: Context<Bytes>,
    package: Option<DwarfPackage<Bytes>>,
}

/// Function and source line of an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeFrame {
    /// Demangled name; empty if unknown.
    pub function: String,
    /// Source file; empty if unknown.
    pub file: String,
    /// Line of the instruction, or of the call that was inlined there.
    pub line: Option<u32>,
}

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lines")
    }
}

impl Lines {
    /// Reads the debug information of `path`; `None` if it has none that can be read.
    pub fn open(path: &Path) -> Option<Self> {
        let contents = Contents::open(path).ok()?;
        let sections = Sections::of(&contents)?;
        let mut dwarf = Dwarf::load(|id| sections.load(Some(id.name()), id)).ok()?;
        dwarf.populate_abbreviations_cache(AbbreviationsCacheStrategy::Duplicates);
        Some(Self {
            context: Context::from_dwarf(dwarf).ok()?,
            package: package(path),
        })
    }

    /// The functions at a virtual address, innermost first; empty if nothing is known.
    pub fn frames(&self, probe: u64) -> Vec<CodeFrame> {
        // addr2line searches below the next address, which does not exist for the last one.
        match probe {
            u64::MAX => Vec::new(),
            _ => self.look_up(probe).unwrap_or_default(),
        }
    }

    /// The pieces of code from `low` to `high` that the line table tells apart, as virtual address and bytes.
    pub fn pieces(&self, low: u64, high: u64) -> Vec<(u64, u64)> {
        let rows = self.context.find_location_range(low, high).ok();
        let rows = rows.into_iter().flatten();
        rows.map(|(start, bytes, _)| (start, bytes)).collect()
    }

    fn look_up(&self, probe: u64) -> Result<Vec<CodeFrame>, Error> {
        let mut step = self.context.find_frames(probe);
        let mut found = loop {
            match step {
                LookupResult::Output(frames) => break frames?,
                LookupResult::Load { load, continuation } => {
                    step = continuation.resume(self.split_unit(&load));
                }
            }
        };
        let mut frames = Vec::new();
        while let Ok(Some(frame)) = found.next() {
            let name = frame.function.as_ref();
            let name = name.and_then(|name| Some(demangle(&name.raw_name().ok()?)));
            let location = frame.location.as_ref();
            frames.push(CodeFrame {
                function: name.unwrap_or_default(),
                file: location
                    .and_then(|at| at.file)
                    .unwrap_or_default()
                    .to_owned(),
                line: location.and_then(|at| at.line),
            });
        }
        Ok(frames)
    }

    /// Debug information that a compiler put into a file of its own.
    fn split_unit(&self, load: &SplitDwarfLoad<Bytes>) -> Option<Arc<Dwarf<Bytes>>> {
        if let Some(package) = &self.package
            && let Ok(Some(unit)) = package.find_cu(load.dwo_id, &load.parent)
        {
            return Some(Arc::new(unit));
        }
        let mut path = PathBuf::new();
        for part in [load.comp_dir.as_ref(), Some(load.path.as_ref()?)] {
            let part = part.map(|part| part.to_slice());
            path.push(OsStr::from_bytes(
                &part.transpose().ok()?.unwrap_or_default(),
            ));
        }
        let contents = Contents::open(&path).ok()?;
        let sections = Sections::of(&contents)?;
        let mut dwarf = Dwarf::load(|id| sections.load(id.dwo_name(), id)).ok()?;
        let header = dwarf.units().next().ok()??;
        let is_it = dwarf.unit(header).ok()?.dwo_id == Some(load.dwo_id);
        dwarf.make_dwo(&load.parent);
        is_it.then(|| Arc::new(dwarf))
    }
}

/// Package that `dwp` made of the split files of a program, if it stands beside the program.
fn package(program: &Path) -> Option<DwarfPackage<Bytes>> {
    let mut path = program.as_os_str().to_owned();
    path.push(".dwp");
    let contents = Contents::open(Path::new(&path)).ok()?;
    let sections = Sections::of(&contents)?;
    let empty = Bytes::new(Arc::from([]), sections.endian);
    DwarfPackage::load(|id| sections.load(id.dwo_name(), id), empty).ok()
}

/// Sections of one file.
struct Sections<'a> {
    contents: &'a Contents,
    file: object::File<'a, &'a Contents>,
    endian: RunTimeEndian,
    /// Bytes that may still be read.
    left: std::cell::Cell<u64>,
}

impl<'a> Sections<'a> {
    fn of(contents: &'a Contents) -> Option<Self> {
        let file = object::File::parse(contents).ok()?;
        let endian = match file.is_little_endian() {
            true => RunTimeEndian::Little,
            false => RunTimeEndian::Big,
        };
        Some(Self {
            contents,
            file,
            endian,
            left: BYTES_MAX.into(),
        })
    }

    /// The bytes of a section; empty if the section does not exist, or if functions and lines do not need it.
    fn load(&self, name: Option<&str>, id: SectionId) -> Result<Bytes, Error> {
        let bytes = match name.filter(|_| is_used(id)) {
            Some(name) => self.read(name).map_err(|_| Error::Io)?,
            None => Arc::from([]),
        };
        Ok(Bytes::new(bytes, self.endian))
    }

    fn read(&self, name: &str) -> io::Result<Arc<[u8]>> {
        let Some(section) = self.file.section_by_name(name) else {
            return Ok(Arc::from([]));
        };
        let range = section.compressed_file_range().map_err(io::Error::other)?;
        let left = self.left.get().checked_sub(range.uncompressed_size);
        self.left.set(left.ok_or(io::ErrorKind::FileTooLarge)?);
        if range.format != CompressionFormat::None {
            let bytes = section.uncompressed_data().map_err(io::Error::other)?;
            return Ok(Arc::from(bytes.as_ref()));
        }
        // The whole section is read at once: through the blocks of [`Contents`], its bytes would be copied twice.
        let end = range.offset.checked_add(range.uncompressed_size);
        if end.is_none_or(|end| end > self.contents.size() as u64) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut bytes: Arc<[u8]> = (0..range.uncompressed_size).map(|_| 0).collect();
        let into = Arc::get_mut(&mut bytes).ok_or(io::ErrorKind::Other)?;
        self.contents.file().read_exact_at(into, range.offset)?;
        Ok(bytes)
    }
}

/// Whether functions and lines need the section.
fn is_used(id: SectionId) -> bool {
    !matches!(
        id,
        SectionId::DebugLoc
            | SectionId::DebugLocLists
            | SectionId::DebugMacinfo
            | SectionId::DebugMacro
            | SectionId::DebugNames
    )
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const SOURCE: &str = "static inline __attribute__((always_inline)) int inner(int x) {\n    volatile int y = x * 3; return y;\n}\nint outer(int x) {\n    return inner(x) + 1;\n}\nint main(void) { return outer(1); }\n";

    /// Compiles [`SOURCE`] into a folder.
    fn compiled(folder: &Path, options: &[&str]) -> PathBuf {
        std::fs::write(folder.join("code.c"), SOURCE).unwrap();
        let program = folder.join("code");
        let status = Command::new("cc")
            .current_dir(folder)
            .args([
                "-g",
                "-O1",
                "-fno-inline-functions-called-once",
                "-c",
                "code.c",
            ])
            .args(options)
            .status()
            .unwrap();
        assert!(status.success());
        let linked = Command::new("cc")
            .current_dir(folder)
            .args(["-o", "code", "code.o"])
            .args(options.iter().filter(|option| option.starts_with("-Wl")))
            .status()
            .unwrap();
        assert!(linked.success());
        program
    }

    /// Names and lines at the begin of `outer`.
    fn frames_of_outer(program: &Path) -> Vec<(String, Option<u32>)> {
        use object::ObjectSymbol as _;
        let contents = Contents::open(program).unwrap();
        let file = object::File::parse(&contents).unwrap();
        let outer = file.symbol_by_name("outer").unwrap();
        let lines = Lines::open(program).unwrap();
        let pieces = lines.pieces(outer.address(), outer.address() + outer.size());
        let all = pieces.iter().flat_map(|piece| lines.frames(piece.0));
        let mut all: Vec<_> = all.map(|frame| (frame.function, frame.line)).collect();
        all.sort();
        all.dedup();
        all
    }

    #[test]
    fn functions_and_lines_are_found_in_whole_split_and_compressed_files() {
        let ways: [&[&str]; 4] = [
            &[],
            &["-gdwarf-4"],
            &["-gz=zlib", "-Wl,--compress-debug-sections=zlib"],
            &["-gsplit-dwarf"],
        ];
        for options in ways {
            let folder = tempfile::tempdir().unwrap();
            let program = compiled(folder.path(), options);
            let found = frames_of_outer(&program);
            assert_eq!(Lines::open(&program).unwrap().frames(u64::MAX), []);
            for expected in [("inner", 2), ("outer", 5)] {
                let expected = (expected.0.to_owned(), Some(expected.1));
                assert!(found.contains(&expected), "{options:?}: {found:?}");
            }
        }
    }

    #[test]
    fn debug_information_that_is_cut_short_or_claims_more_than_there_is_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let program = compiled(folder.path(), &[]);
        let contents = Contents::open(&program).unwrap();
        let sections = Sections::of(&contents).unwrap();
        std::fs::File::options()
            .write(true)
            .open(&program)
            .unwrap()
            .set_len(4096)
            .unwrap();
        assert!(sections.read(".debug_info").is_err());
        assert!(Lines::open(&program).is_none());

        let sections = Sections {
            left: 10.into(),
            ..sections
        };
        let error = sections.read(".debug_line").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }
}
