//go:build mutations

package mutations

import "testing"

// The rules of the audit log and of rotation, broken one at a time:
//
//	make mutations ONLY=TestAuditMutations
func TestAuditMutations(t *testing.T) {
	const (
		act, rotate, keys, log, publication = "origin/admin/act.go", "origin/admin/rotate.go", "origin/admin/keys.go", "origin/audit/audit.go", "origin/admin/publication.go"
		migration                           = "origin/admin/migrations/00001_schema.sql"
		eachAct, failed, appendOnly, filter = "TestEachActHasOneRowInTheAuditLog", "TestAFailedActLeavesNoRow", "TestTheAuditLogIsAppendOnly", "TestTheAuditLogIsFiltered"
		rotating                            = "TestRotatingAKey"
	)
	caught(t, []mutation{
		{"no row", []edit{{act, "if err := audit.Write(ctx, tx, done); err != nil {", "if err := audit.CheckActor(done.Action); err != nil {"}}, "./origin/admin", eachAct},
		{"a row before the change is committed", []edit{{act, "\tmade, done, err := do(tx)\n", "\tmade, done, err := do(tx)\n\tif err == nil {\n\t\terr = tx.Commit(ctx)\n\t}\n\tif err == nil {\n\t\ttx, err = c.conn.Begin(ctx)\n\t}\n"}}, "./origin/admin", failed},
		{"every field is a change", []edit{{act, "!reflect.DeepEqual(from[name], to[name])", "(!reflect.DeepEqual(from[name], to[name]) || true)"}}, "./origin/admin", eachAct},
		{"the system user instead of the actor", []edit{{log, "\t\treturn name\n", "\t\treturn name[:0] + SystemUser()\n"}}, "./origin/admin", eachAct},
		{"a logical subscription may change it", []edit{{migration, "rows_append_only BEFORE UPDATE OR DELETE ON", "rows_append_only BEFORE INSERT ON"}}, "./origin/admin", appendOnly},
		{"the log can be emptied", []edit{{migration, "UPDATE OR DELETE OR TRUNCATE", "UPDATE OR DELETE"}}, "./origin/admin", appendOnly},
		{"replication sessions may change it", []edit{{migration, "ENABLE ALWAYS TRIGGER audit_log_append_only", "ENABLE TRIGGER audit_log_append_only"}, {migration, "ENABLE ALWAYS TRIGGER audit_log_rows_append_only", "ENABLE TRIGGER audit_log_rows_append_only"}}, "./origin/admin", appendOnly},
		{"a key is not found by what replaced it", []edit{{log, " OR details ->> '`+NewKey+`' = $2::text", ""}}, "./origin/admin", filter},
		{"a publication that stays is in the log", []edit{{publication, "\tcase before == after:\n\t\treturn \"\", a, errPublished\n", ""}}, "./origin/admin", "TestMigrationsAreInTheAuditLog"},
		{"an import without a row", []edit{{"origin/load/load.go", "return audit.Write(ctx, tx, audit.Act{Action: \"import\"", "return (func(context.Context, pgx.Tx, audit.Act) error { return nil })(ctx, tx, audit.Act{Action: \"import\""}}, "./origin/load", "TestPostgres"},

		{"a rotation extends the old key", []edit{{rotate, "least(expires_at, clock_timestamp() + $2::interval)", "clock_timestamp() + $2::interval"}}, "./origin/admin", rotating},
		{"a rotation extends what the client has", []edit{{rotate, "coalesce(clock_timestamp() + $4::interval, least(expires_at, revoked_at))", "clock_timestamp() + $4::interval"}}, "./origin/admin", rotating},
		{"a key that has ended is rotated", []edit{{rotate, "if !before.works() {", "if false {"}}, "./origin/admin", rotating},
		{"a rotation does not wait for the row", []edit{{rotate, " FOR NO KEY UPDATE", ""}}, "./origin/admin", "TestARotationThatWaited"},
		{"a revocation to come is one", []edit{{keys, "CASE WHEN revoked_at <= clock_timestamp() THEN", "CASE WHEN revoked_at IS NOT NULL THEN"}}, "./origin/admin", "TestStatesOfKeys"},
	})
}
