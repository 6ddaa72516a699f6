"""From records to groups that train."""
