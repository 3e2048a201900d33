//! Structured merge: field sets, managed fields, server-side apply and strategic merge patch.
