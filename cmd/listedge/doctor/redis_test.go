package doctor

import (
	"context"
	"slices"
	"strings"
	"testing"

	"listedge/origin/admin"
)

func TestVersionsOfRedis(t *testing.T) {
	t.Parallel()
	for info, want := range map[string]admin.Finding{
		"": {Level: admin.Fail}, "redis_version:5.0.14": {Level: admin.Fail, Text: "5.0.14"}, "redis_version:6.0.16": {Level: admin.Fail, Text: "6.0.16"},
		"redis_version:6.2.0": {Level: admin.OK, Text: "6.2.0"}, "redis_version:10.0.0": {Level: admin.OK, Text: "10.0.0"},
		"redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1\r\n": {Level: admin.OK, Text: "7.2.4"},
	} {
		t.Run(info, func(t *testing.T) {
			if found := judgeInfo(info, nil); !has(found, "redis version", want.Level, want.Text) {
				t.Errorf("%+v, want %+v", found, want)
			}
		})
	}
	t.Run("no answer", func(t *testing.T) {
		if found := judgeInfo("", context.DeadlineExceeded); len(found) != 1 || !has(found, "redis version", admin.Warn, "no answer in time") {
			t.Errorf("%+v", found)
		}
	})
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
func has(findings []admin.Finding, subject string, level admin.Level, text string) bool {
	return slices.ContainsFunc(findings, func(f admin.Finding) bool {
		return f.Subject == subject && f.Level == level && strings.Contains(f.Text+f.Remedy, text)
	})
}
