//! Build-ids that one small read finds.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use object::Endianness;
use object::elf::{ELF_NOTE_GNU, FileHeader32, FileHeader64, NT_GNU_BUILD_ID};
use object::read::elf::{FileHeader, ProgramHeader};

/// Bytes that are read: a page, in which linkers put the notes after the program's headers.
const LEADING_BYTES: usize = 4096;

/// GNU build-id of an ELF file, if it is within the file's first page; for callers that look at many files, as other
/// ways read the file's end, too.
///
/// # Errors
/// Errors of [`nearpage_files::open`] and of reading.
pub fn leading_build_id(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = nearpage_files::open(path)?;
    let mut bytes = [0; LEADING_BYTES];
    let mut length = 0;
    loop {
        match file.read_at(&mut bytes[length..], length as u64)? {
            0 => break,
            read => length += read,
        }
    }
    let bytes = &bytes[..length];
    let found = build_id::<FileHeader64<Endianness>>(bytes);
    Ok(found.or_else(|| build_id::<FileHeader32<Endianness>>(bytes)))
}

fn build_id<Header: FileHeader<Endian = Endianness>>(bytes: &[u8]) -> Option<Vec<u8>> {
    let header = Header::parse(bytes).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, bytes).ok()?;
    let notes = segments
        .iter()
        .filter_map(|segment| segment.notes(endian, bytes).ok()?);
    for mut notes in notes {
        while let Ok(Some(note)) = notes.next() {
            if note.name() == ELF_NOTE_GNU && note.n_type(endian) == NT_GNU_BUILD_ID {
                return Some(note.desc().to_vec());
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::fs;

    use object::Object;

    use super::*;
    use crate::Contents;

    #[test]
    fn a_program_has_the_build_id_that_its_sections_tell() {
        let path = Path::new("/bin/sh");
        let contents = Contents::open(path).unwrap();
        let told = object::File::parse(&contents).unwrap();
        let told = told.build_id().unwrap().unwrap().to_vec();
        assert_eq!(leading_build_id(path).unwrap(), Some(told));
    }

    #[test]
    fn files_that_are_cut_or_no_program_have_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cut");
        let whole = fs::read("/bin/sh").unwrap();
        for length in (0..LEADING_BYTES).step_by(17) {
            fs::write(&path, &whole[..length]).unwrap();
            leading_build_id(&path).unwrap();
        }
        fs::write(&path, "#!/bin/sh\n").unwrap();
        assert_eq!(leading_build_id(&path).unwrap(), None);
        assert!(leading_build_id(folder.path()).is_err());
    }

    #[test]
    fn damaged_headers_are_no_build_id_and_no_panic() {
        let mut bytes = fs::read("/bin/sh").unwrap();
        bytes.truncate(LEADING_BYTES);
        for at in 0..1024 {
            let sound = bytes[at];
            for damage in [0, 0xff, sound ^ 0x40] {
                bytes[at] = damage;
                build_id::<FileHeader64<Endianness>>(&bytes);
                build_id::<FileHeader32<Endianness>>(&bytes);
            }
            bytes[at] = sound;
        }
    }
}
