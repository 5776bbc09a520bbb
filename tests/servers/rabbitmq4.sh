#!/bin/sh
# Makes a RabbitMQ 4 out of the packages of Debian 13, beside whatever this machine has installed.
#   tests/servers/rabbitmq4.sh DIRECTORY     takes 10 s, 80 MB of downloads and 300 MB of disk
# DIRECTORY/rabbitmq-server then is a command for tests/servers/rabbitmq.py. Nothing is installed: the
# packages are unpacked in DIRECTORY, and the command sees that as its root. Both need no rights
# where users may have namespaces of their own.
set -eu
mkdir -p "${1:?a directory}"
cd "$1"
rm -f rabbitmq-server
rm -rf root apt
mkdir -p root apt/lists/partial apt/archives/partial

keys=/usr/share/keyrings/debian-archive-trixie-stable.gpg
[ -e $keys ] || keys=/usr/share/keyrings/debian-archive-keyring.gpg
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
echo "deb [signed-by=$keys] $mirror trixie main" >apt/sources.list
: >apt/status # as if nothing were installed
apt() {
    apt-get -qq -o Dir::Etc::SourceList="$PWD/apt/sources.list" -o Dir::Etc::SourceParts=- \
        -o Dir::State="$PWD/apt" -o Dir::State::status="$PWD/apt/status" -o Dir::Cache="$PWD/apt" \
        -o APT::Sandbox::User= "$@"
}
apt update
apt install --yes --no-install-recommends --download-only rabbitmq-server \
    base-files bash coreutils dash debianutils grep hostname mawk sed util-linux >/dev/null
# The first one makes the links from /bin to /usr/bin, which the others then fill.
for package in apt/archives/base-files_*.deb apt/archives/*.deb; do
    dpkg --extract "$package" root
done
rm -rf apt

# What the packages would set up.
ln -sf mawk root/usr/bin/awk
echo 'root:x:0:0:root:/root:/bin/sh' >root/etc/passwd
echo '127.0.0.1 localhost' >root/etc/hosts
echo 'hosts: files' >root/etc/nsswitch.conf

cat >rabbitmq-server.new <<END
#!/bin/sh
# Runs RabbitMQ 4. It sees \$HOME as it is, and nothing else of this machine's files.
set -eu
[ "\$(id -u)" = 0 ] || user=--map-root-user
exec unshare \${user:-} --mount sh -eu -c '
    mkdir -p "\$1\$HOME"
    mount --rbind /proc "\$1/proc"
    mount --rbind /dev "\$1/dev"
    mount --bind "\$HOME" "\$1\$HOME"
    exec chroot "\$1" /usr/lib/rabbitmq/bin/rabbitmq-server' sh '$PWD/root'
END
chmod +x rabbitmq-server.new
mv rabbitmq-server.new rabbitmq-server
