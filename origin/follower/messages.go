package follower

import (
	"strings"

	"github.com/google/uuid"
)

// MessagePrefix marks messages in the WAL that are for the follower. A message
// whose content is not known here concerns everything.
const MessagePrefix = "listedge"

// schemaChanged is the message of a follower that has found the tables, or what
// their rows are read by, changed. It concerns everything.
const schemaChanged = "schema"

// byEventTrigger says whether a message is one that the event triggers of earlier
// versions wrote: the tag of a command, as "ALTER TABLE". They wrote one for the
// DDL of anybody in the database. Followers of this version notice by themselves
// what concerns the tables.
func byEventTrigger(message []byte) bool {
	return len(message) > 0 && 'A' <= message[0] && message[0] <= 'Z'
}

const purge = "purge "

// PurgeMessage is the message that has all pages of a workspace read anew, or of all
// workspaces where none is named.
func PurgeMessage(workspace *uuid.UUID) string {
	if workspace == nil {
		return purge
	}
	return purge + workspace.String()
}

// purged is the workspace that a message names; false for one that concerns
// everything.
func purged(message []byte) (uuid.UUID, bool) {
	named, ok := strings.CutPrefix(string(message), purge)
	if !ok {
		return uuid.UUID{}, false
	}
	workspace, err := uuid.Parse(named)
	return workspace, err == nil
}
