package admin

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// NodeState is what a node tells the others of itself, for their status pages.
type NodeState struct {
	Name     string    `json:"name"` // of the machine, and the port of the admin listener
	Version  string    `json:"version"`
	Revision string    `json:"revision"`
	Started  time.Time `json:"started"`
	Ready    bool      `json:"ready"`
	Mode     string    `json:"mode"`
	Follower bool      `json:"follower"`
	Down     []string  `json:"down"` // names of its dependencies that are
	Last     Point     `json:"last"`
}

// KeyState is how much a key is used on this node.
type KeyState struct {
	ID        string  `json:"id"`
	Prefix    string  `json:"prefix"` // empty: the names could not be read
	Name      string  `json:"name"`
	Workspace string  `json:"workspace"`
	Requests  float64 `json:"requests"` // a second, over the last one or two minutes
	Refused   float64 `json:"refused"`
}

// State is what the status page shows beside the metrics.
type State struct {
	Now          time.Time            `json:"now"`
	Self         string               `json:"self"` // its name in Fleet
	Dependencies []DependencyState    `json:"dependencies"`
	Latencies    map[string]Quantiles `json:"latencies"` // by outcome, and of all
	Keys         []KeyState           `json:"keys"`
	Fleet        []NodeState          `json:"fleet"` // with this node; all that are known
	History      []Point              `json:"history"`
}

// StateSources are what State is made of. Only Fleet and Keys ask other servers; they have stateTimeout.
type StateSources struct {
	Watch   *Watch
	History *History
	Self    func() NodeState
	Fleet   func(context.Context) []NodeState // the other nodes; nil = there are none
	Keys    func(context.Context) []KeyState
}

// stateTimeout bounds what the page waits for when Redis or Postgres hang.
const stateTimeout = 500 * time.Millisecond

// serve answers with the state; after is the number of the last point that the page
// has.
func (s *StateSources) serve(w http.ResponseWriter, r *http.Request) {
	after, _ := strconv.ParseUint(r.URL.Query().Get("after"), 10, 64)
	ctx, cancel := context.WithTimeout(r.Context(), stateTimeout)
	defer cancel()
	self := s.Self()
	state := State{Now: time.Now(), Self: self.Name, Dependencies: s.Watch.States(), History: s.History.After(after), Fleet: []NodeState{self}}
	_, state.Latencies = s.History.Latest()
	if s.Fleet != nil {
		for _, n := range s.Fleet(ctx) {
			if n.Name != self.Name {
				state.Fleet = append(state.Fleet, n)
			}
		}
	}
	slices.SortFunc(state.Fleet, func(a, b NodeState) int { return cmp.Compare(a.Name, b.Name) })
	state.Keys = s.Keys(ctx)
	writeJSON(w, http.StatusOK, state)
}
