package doctor

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"listedge/edge/admin"
)

// Each section of the runbook that the doctor and the checks of a node name exists.
func TestTheRunbookHasWhatTheDoctorNames(t *testing.T) {
	runbook, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", "RUNBOOK.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, file := range []string{"../node/checks.go", "../../../origin/admin/doctor.sql"} {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`Listedge[A-Z]\w+`).FindAllString(string(source), -1) {
			named++
			if !strings.Contains(string(runbook), "\n## "+name+"\n") {
				t.Errorf("%s: the runbook has no section %s", file, name)
			}
		}
	}
	if named < 5 {
		t.Errorf("%d found", named)
	}
}

// A node whose checks have found nothing, as just after a start, is not yet one that has failed.
func TestANodeThatIsNotReady(t *testing.T) {
	for why, want := range map[string]Finding{
		"":         {Level: Warn, Text: "check again: no check says why"},
		"it hangs": {Level: Fail, Text: "mend what the findings on its checks name"},
	} {
		n := nodeState{name: "it", State: admin.State{Checks: []admin.CheckState{{Why: why}}}}
		if found := n.check(); found.Level != want.Level || !strings.HasPrefix(found.Remedy, want.Text) {
			t.Errorf("%q: %+v", why, found)
		}
	}
}

// A finding says on whom, unless only the doctor has looked.
func TestWhoFoundIt(t *testing.T) {
	bad := admin.State{Checks: []admin.CheckState{{Check: admin.Check{Name: "Redis"}, Why: "it is away"}}}
	doctor, node := nodeState{name: "the doctor", State: bad}, nodeState{name: "a"}
	for text, nodes := range map[string][]nodeState{"it is away": {doctor}, "it is away, on the doctor": {doctor, node}} {
		if found := checksOf(nodes); len(found) != 1 || found[0].Text != text {
			t.Errorf("%q: %+v", text, found)
		}
	}
}

// Nodes that count each other differently share no limits, whatever their settings are.
func TestNodesOfSeveralRedis(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		runs  time.Duration // of the node that counts itself alone
		nodes int64
		want  Level
	}{
		{"one uses another Redis", time.Hour, 1, Fail},
		{"one has just started", time.Second, 1, Warn},
		{"all use one", time.Hour, 2, OK},
	} {
		t.Run(c.name, func(t *testing.T) {
			var nodes []nodeState
			now := time.Now()
			for name, self := range map[string]admin.NodeState{"a": {Nodes: 2}, "b": {Nodes: c.nodes, Started: now.Add(-c.runs)}} {
				nodes = append(nodes, nodeState{name: name, State: admin.State{Now: now, Self: self, Settings: map[string]any{"redis-url": "redis://" + name}}})
			}
			if found := compareNodes(nodes); !has(found, "fleet size", c.want, "2 on a") {
				t.Errorf("%+v", found)
			}
		})
	}
}

// Views agree if all that know a subject say the same.
func TestAFleetThatAgrees(t *testing.T) {
	t.Parallel()
	of := func(values ...string) (all []view) {
		for i, v := range values {
			all = append(all, view{string(rune('a' + i)), map[string]string{"size": v}})
		}
		return all
	}
	for _, c := range []struct {
		name  string
		views []view
		text  string
		same  bool
	}{
		{"nobody knows", of("", ""), "", true},
		{"all say the same", of("3", "3"), "3 on all", true},
		{"one does not know", of("3", "", "3"), "3 on all", true},
		{"two values, the more frequent first", of("2", "3", "3"), "3 on b, c; 2 on a", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if text, same := compare(c.views, "size"); text != c.text || same != c.same {
				t.Errorf("%q, %v", text, same)
			}
		})
	}
}

// has reports whether one of the findings on a subject has this level and text.
func has(findings []Finding, subject string, level Level, text string) bool {
	return slices.ContainsFunc(findings, func(f Finding) bool {
		return f.Subject == subject && f.Level == level && strings.Contains(f.Text+f.Remedy, text)
	})
}
