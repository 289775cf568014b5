package publication

import (
	"strings"

	"github.com/google/uuid"
)

// MessagePrefix marks messages in the WAL that are for whoever follows it. What
// such a message does not say more closely concerns everything: the schema's
// event trigger writes them for every DDL command.
const MessagePrefix = "listedge"

const purge = "purge "

// Purge is the message that has all pages of a workspace read anew, or of all
// workspaces where none is named.
func Purge(workspace *uuid.UUID) string {
	if workspace == nil {
		return purge
	}
	return purge + workspace.String()
}

// Purged is the workspace that a message names; false for one that concerns
// everything.
func Purged(message []byte) (uuid.UUID, bool) {
	named, ok := strings.CutPrefix(string(message), purge)
	if !ok {
		return uuid.UUID{}, false
	}
	workspace, err := uuid.Parse(named)
	return workspace, err == nil
}
