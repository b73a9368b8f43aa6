#!/bin/sh
# Makes the secrets of compose.yaml beside it. What exists is kept: the database knows its password.
set -eu
cd "$(dirname "$0")"
mkdir -p secrets
# The folder is closed to others. The files are not: programs of containers read them as users of their own.
chmod 700 secrets
printf '*\n' > secrets/.gitignore
random() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }
keep() { [ -s "secrets/$1" ] || { cat > "secrets/$1.new" && chmod 644 "secrets/$1.new" && mv "secrets/$1.new" "secrets/$1"; }; }

random | keep database-password
random | keep grafana-password
random | keep store-secret
printf 'postgresql://phalanx:%s@database:5432/phalanx\n' "$(cat secrets/database-password)" | keep database-url
# rclone reads the variable as CSV, so the pair has quotes of its own inside those of the file.
printf "RCLONE_AUTH_KEY='\"phalanx,%s\"'\n" "$(cat secrets/store-secret)" | keep store.env
keep jobs.env <<END
AWS_ACCESS_KEY_ID=phalanx
AWS_SECRET_ACCESS_KEY=$(cat secrets/store-secret)
AWS_ENDPOINT_URL=http://store:9000
AWS_REGION=us-east-1
END
echo "the password of the user admin of Grafana is in $(pwd)/secrets/grafana-password"
