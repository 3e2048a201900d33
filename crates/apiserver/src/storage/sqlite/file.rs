//! The file: schema, loading, and the statements of the writer.
//!
//! `versions` holds every version once, by revision; the view `current` is for people who look inside. A
//! version becomes garbage when its successor (or its own removal) is compacted.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use rusqlite::{Connection, ErrorCode, params};

use crate::storage::{Event, EventKind, Index, Key, StorageError, Version};

/// Raise it whenever an older program could not read the file any more.
const SCHEMA_VERSION: i64 = 1;

const SCHEMA: &str = "
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE versions (
  revision INTEGER PRIMARY KEY,
  key TEXT NOT NULL,
  created INTEGER NOT NULL,   -- revision of the object's first version
  previous INTEGER,           -- revision that this one replaced
  deleted INTEGER NOT NULL,   -- 1: a removal, value is the last state
  at INTEGER NOT NULL,        -- commit time, milliseconds since 1970
  hole INTEGER NOT NULL,      -- offset of resourceVersion's digits in value
  value BLOB NOT NULL
);
CREATE VIEW current AS
  SELECT key, max(revision) AS revision, CAST(value AS TEXT) AS value FROM versions GROUP BY key HAVING deleted = 0;
INSERT INTO meta VALUES ('compacted', 0);
";

pub(super) struct Database {
    connection: Connection,
}

pub(super) fn failure(error: &rusqlite::Error) -> StorageError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StorageError::Full(error.to_string().into()),
        _ => StorageError::Backend(error.to_string().into()),
    }
}

impl Database {
    pub(super) fn open(path: &Path, max_pages: Option<u32>) -> Result<Self, StorageError> {
        let wal = path.with_extension("db-wal");
        let unclean = std::fs::metadata(&wal).is_ok_and(|meta| meta.len() > 0);
        let connection = Connection::open(path).map_err(|e| failure(&e))?;
        let database = Self { connection };
        database.prepare(path, unclean, max_pages).map_err(|error| match error {
            OpenError::Sqlite(error) => failure(&error),
            OpenError::Storage(error) => error,
        })?;
        Ok(database)
    }

    fn prepare(&self, path: &Path, unclean: bool, max_pages: Option<u32>) -> Result<(), OpenError> {
        let db = &self.connection;
        let found: i64 = db.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if found > SCHEMA_VERSION {
            let path = path.display().to_string().into();
            return Err(StorageError::NewerSchema { path, found, known: SCHEMA_VERSION }.into());
        }
        db.pragma_update(None, "journal_mode", "WAL")?;
        db.pragma_update(None, "synchronous", "FULL")?;
        // The only connection checkpoints inside its own commits, so the log is reset and reused every
        // few MiB; what a burst left is cut back.
        db.pragma_update(None, "wal_autocheckpoint", 1000)?;
        db.pragma_update(None, "journal_size_limit", 16 << 20)?;
        if let Some(pages) = max_pages {
            db.pragma_update(None, "max_page_count", pages)?;
        }
        db.set_prepared_statement_cache_capacity(16);
        if found == 0 {
            db.execute_batch(&format!("BEGIN; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"))?;
        } else if unclean {
            let verdict: String = db.pragma_query_value(None, "quick_check", |row| row.get(0))?;
            if verdict != "ok" {
                let text = format!("{} is damaged: {verdict}", path.display());
                return Err(StorageError::Backend(text.into()).into());
            }
        }
        Ok(())
    }

    pub(super) fn load(&self, index: &Index) -> Result<(), StorageError> {
        self.load_rows(index).map_err(|e| failure(&e))
    }

    fn load_rows(&self, index: &Index) -> rusqlite::Result<()> {
        let db = &self.connection;
        let compacted: i64 =
            db.query_row("SELECT value FROM meta WHERE name = 'compacted'", [], |row| row.get(0))?;
        let mut objects = HashMap::new();
        let mut by_revision: HashMap<i64, Arc<Version>> = HashMap::new();
        let mut events = Vec::new();
        let mut last = compacted;
        let mut rows = db.prepare(
            "SELECT revision, key, created, previous, deleted, at, hole, value FROM versions ORDER BY revision",
        )?;
        let mut rows = rows.query([])?;
        while let Some(row) = rows.next()? {
            let revision: i64 = row.get(0)?;
            let text: String = row.get(1)?;
            let Some(key) = Key::parse(&text) else { continue };
            let previous: Option<i64> = row.get(3)?;
            let deleted: bool = row.get(4)?;
            let at: i64 = row.get(5)?;
            let value: Vec<u8> = row.get(7)?;
            let created: i64 = row.get(2)?;
            let version = Version::stored(
                key.clone(),
                revision as u64,
                created as u64,
                Bytes::from(value),
                row.get(6)?,
            );
            let version = Arc::new(version);
            last = last.max(revision);
            if deleted {
                objects.remove(&key);
            } else {
                objects.insert(key, version.clone());
                by_revision.insert(revision, version.clone());
            }
            if revision > compacted {
                let kind = match (deleted, previous) {
                    (true, _) => EventKind::Deleted,
                    (false, Some(_)) => EventKind::Modified,
                    (false, None) => EventKind::Added,
                };
                let previous = previous.and_then(|revision| by_revision.get(&revision).cloned());
                let at = Timestamp::from_millisecond(at).unwrap_or(Timestamp::UNIX_EPOCH);
                events.push(Arc::new(Event::new(kind, version, previous, at)));
            }
        }
        index.load(objects.into_values().collect(), events, last as u64, compacted as u64);
        Ok(())
    }

    pub(super) fn begin(&self) -> rusqlite::Result<()> {
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([]).map(drop)
    }

    pub(super) fn commit(&self) -> rusqlite::Result<()> {
        self.connection.prepare_cached("COMMIT")?.execute([]).map(drop)
    }

    pub(super) fn rollback(&self) {
        // SQLite may already have rolled back by itself (disk full); then there is nothing to do.
        if !self.connection.is_autocommit()
            && let Err(error) = self.connection.execute_batch("ROLLBACK")
        {
            tracing::error!(%error, "rollback failed");
        }
    }

    pub(super) fn store(&self, event: &Event) -> rusqlite::Result<()> {
        let version = &event.version;
        let revision = version.revision() as i64;
        let deleted = event.kind == EventKind::Deleted;
        self.connection
            .prepare_cached("INSERT INTO versions VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")?
            .execute(params![
                revision,
                version.key().as_str(),
                version.created() as i64,
                event.previous.as_ref().map(|previous| previous.revision() as i64),
                deleted,
                event.at.as_millisecond(),
                version.hole(),
                &version.bytes()[..],
            ])?;
        Ok(())
    }

    /// Deletes history from `from` (exclusive) to `to` (inclusive) in one transaction.
    pub(super) fn compact(&self, from: u64, to: u64) -> rusqlite::Result<()> {
        self.begin()?;
        let (from, to) = (from as i64, to as i64);
        let db = &self.connection;
        db.prepare_cached(
            "DELETE FROM versions WHERE revision IN
             (SELECT previous FROM versions WHERE revision > ?1 AND revision <= ?2 AND previous IS NOT NULL)",
        )?
        .execute([from, to])?;
        db.prepare_cached("DELETE FROM versions WHERE revision > ?1 AND revision <= ?2 AND deleted = 1")?
            .execute([from, to])?;
        db.prepare_cached("UPDATE meta SET value = ?1 WHERE name = 'compacted'")?.execute([to])?;
        self.commit()
    }
}

enum OpenError {
    Sqlite(rusqlite::Error),
    Storage(StorageError),
}

impl From<rusqlite::Error> for OpenError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<StorageError> for OpenError {
    fn from(error: StorageError) -> Self {
        Self::Storage(error)
    }
}
